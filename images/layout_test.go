package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/opencontainers/go-digest"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// file, dir and their kin are entries of test layers.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hardLink(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}, ""}
}

func special(name string, kind byte) entry {
	return entry{tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func (e entry) owned(uid, gid int) entry {
	e.Uid, e.Gid = uid, gid
	return e
}

func (e entry) mode(mode int64) entry {
	e.Mode = mode
	return e
}

func (e entry) with(record, value string) entry {
	e.PAXRecords = map[string]string{record: value}
	return e
}

// base is what every root needs.
func base(more ...entry) []entry {
	return append([]entry{dir("./"), dir("./dev/"), dir("./proc/"), dir("./sys/"), dir("./etc/"), file("./etc/name", "a root")}, more...)
}

func archive(t testing.TB, entries []entry) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := tar.NewWriter(&out)
	for _, e := range entries {
		header := e.Header
		header.ModTime = time.Unix(1_000_000_000, 0)
		if err := writer.WriteHeader(&header); err != nil {
			t.Fatalf("writing entry %q: %v", e.Name, err)
		}
		if _, err := writer.Write([]byte(e.content)); err != nil {
			t.Fatalf("writing entry %q: %v", e.Name, err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// layout is an OCI layout made by hand, so that every part of it can be wrong.
type layout struct {
	t        testing.TB
	dir      string
	manifest ispec.Manifest
	config   ispec.Image
}

func newLayout(t testing.TB) *layout {
	t.Helper()
	l := &layout{t: t, dir: t.TempDir()}
	l.manifest.SchemaVersion = 2
	l.manifest.MediaType = ispec.MediaTypeImageManifest
	l.config.OS, l.config.Architecture = "linux", "amd64"
	l.config.RootFS.Type = "layers"
	l.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	l.write("index.json", []byte(`{"schemaVersion":2,"manifests":[]}`))
	return l
}

func (l *layout) write(name string, text []byte) {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func (l *layout) blob(mediaType string, text []byte) ispec.Descriptor {
	sum := digest.Digest("sha256:" + sha(text))
	l.write(blobName(sum), text)
	return ispec.Descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(text))}
}

func blobName(sum digest.Digest) string { return filepath.Join("blobs", "sha256", sum.Encoded()) }

func sha(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// layer adds one as it comes off most tools: gzip.
func (l *layout) layer(entries []entry) *layout {
	return l.raw(ispec.MediaTypeImageLayerGzip, archive(l.t, entries))
}

// raw adds a layer whose tar stream is given.
func (l *layout) raw(mediaType string, stream []byte) *layout {
	l.t.Helper()
	stored := stream
	var packed bytes.Buffer
	switch mediaType {
	case ispec.MediaTypeImageLayerZstd:
		writer, err := zstd.NewWriter(&packed)
		if err != nil {
			l.t.Fatal(err)
		}
		writer.Write(stream)
		writer.Close()
		stored = packed.Bytes()
	case ispec.MediaTypeImageLayer:
	default:
		writer := gzip.NewWriter(&packed)
		writer.Write(stream)
		writer.Close()
		stored = packed.Bytes()
	}
	l.manifest.Layers = append(l.manifest.Layers, l.blob(mediaType, stored))
	l.config.RootFS.DiffIDs = append(l.config.RootFS.DiffIDs, digest.Digest("sha256:"+sha(stream)))
	return l
}

// seal writes config and manifest and returns the image's digest.
func (l *layout) seal() images.Digest {
	l.t.Helper()
	config, err := json.Marshal(l.config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.manifest.Config = l.blob(ispec.MediaTypeImageConfig, config)
	manifest, err := json.Marshal(l.manifest)
	if err != nil {
		l.t.Fatal(err)
	}
	return images.Digest(l.blob(ispec.MediaTypeImageManifest, manifest).Digest)
}
