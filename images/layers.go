package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const (
	maxDocument = 4 << 20  // bytes of a manifest or config
	zstdWindow  = 64 << 20 // bytes of memory that a frame may ask for
)

// surveyImage reads the whole image below layout once, without writing: hashes
// of every blob, DiffIDs, and every entry of every layer. It returns the
// manifest to unpack.
func surveyImage(layout string, digest Digest, limits Limits) (ispec.Manifest, error) {
	var manifest ispec.Manifest
	if err := readDocument(layout, string(digest), &manifest); err != nil {
		return manifest, err
	}
	if manifest.MediaType != "" && manifest.MediaType != ispec.MediaTypeImageManifest {
		return manifest, refuse("", "its manifest is of type %.80q", manifest.MediaType)
	}
	if n := len(manifest.Layers); n < 1 || n > limits.Layers {
		return manifest, refuse("", "it has %d layers; 1 to %d are accepted", n, limits.Layers)
	}
	var config ispec.Image
	if err := readDocument(layout, string(manifest.Config.Digest), &config); err != nil {
		return manifest, err
	}
	// umoci indexes DiffIDs by layer without looking.
	if config.RootFS.Type != "layers" || len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return manifest, refuse("", "its config lists %d hashes for %d layers", len(config.RootFS.DiffIDs), len(manifest.Layers))
	}
	survey := newSurvey(limits)
	stream := limits.streamBytes()
	for i, layer := range manifest.Layers {
		read, err := survey.layer(layout, layer, config.RootFS.DiffIDs[i].String(), stream)
		if err != nil {
			return manifest, err
		}
		stream -= read
	}
	return manifest, nil
}

// streamBytes is how much tar an image of these limits can be: its files, and
// for each entry header, padding and an extended header.
func (l Limits) streamBytes() int64 {
	return l.Bytes + int64(l.Entries)*2048 + 1<<20
}

// readDocument decodes the JSON blob of that digest, whose hash it checks.
func readDocument(layout, digest string, into any) error {
	blob, err := openBlob(layout, digest, maxDocument)
	if err != nil {
		return err
	}
	defer blob.Close()
	text, err := io.ReadAll(io.LimitReader(blob, maxDocument))
	if err != nil {
		return fmt.Errorf("reading blob %s: %w", digest, err)
	}
	sum := sha256.Sum256(text)
	if digest != digestPrefix+hex.EncodeToString(sum[:]) {
		return refuse("", "blob %s has another hash", digest)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(into); err != nil {
		return refuse("", "blob %s is not the JSON that it should be", digest)
	}
	return nil
}

// openBlob opens a regular file of at most limit bytes. A digest of the image's
// own choosing becomes a path here, so it is parsed first.
func openBlob(layout, digest string, limit int64) (*os.File, error) {
	parsed, err := ParseDigest(digest)
	if err != nil {
		return nil, refuse("", "it names a blob by something that is not a sha256 digest")
	}
	path := filepath.Join(layout, "blobs", "sha256", parsed.hex())
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil, refuse("", "blob %s is missing", parsed)
	}
	if err != nil {
		return nil, fmt.Errorf("opening blob %s: %w", parsed, err)
	}
	found, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("opening blob %s: %w", parsed, err)
	}
	if !found.Mode().IsRegular() || found.Size() > limit {
		file.Close()
		return nil, refuse("", "blob %s is larger than %d bytes or not a file", parsed, limit)
	}
	return file, nil
}

// layer reads one layer through and returns how many bytes of tar it was.
func (s *survey) layer(layout string, layer ispec.Descriptor, diffID string, limit int64) (int64, error) {
	blob, err := openBlob(layout, string(layer.Digest), s.limits.Blob)
	if err != nil {
		return 0, err
	}
	defer blob.Close()
	stored := sha256.New()
	stream, err := decompress(layer.MediaType, io.TeeReader(blob, stored))
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	unpacked := &hashed{from: stream, hash: sha256.New(), left: limit}
	if err := s.entriesOf(unpacked); err != nil {
		return 0, err
	}
	// Tar ends before its padding, and gzip before what may follow it.
	if _, err := io.Copy(io.Discard, io.TeeReader(blob, stored)); err != nil {
		return 0, fmt.Errorf("reading layer %s: %w", layer.Digest, err)
	}
	if string(layer.Digest) != sumOf(stored) {
		return 0, refuse("", "layer %s has another hash", layer.Digest)
	}
	if diffID != sumOf(unpacked.hash) {
		return 0, refuse("", "layer %s unpacks to another hash than the config's", layer.Digest)
	}
	return limit - unpacked.left, nil
}

func sumOf(hash hash.Hash) string { return digestPrefix + hex.EncodeToString(hash.Sum(nil)) }

// entriesOf judges every entry and reads the stream to its end.
func (s *survey) entriesOf(stream *hashed) error {
	archive := tar.NewReader(stream)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return asRefusal(err)
		}
		if err := s.entry(header); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, stream)
	return asRefusal(err)
}

// asRefusal turns what a parser of foreign bytes says into a refusal; its text
// isn't passed on, since it can quote those bytes.
func asRefusal(err error) error {
	var refused *RefusedError
	var system *os.PathError
	switch {
	case err == nil || errors.As(err, &refused) || errors.As(err, &system):
		return err
	default:
		return refuse("", "a layer is cut off or not a tar archive")
	}
}

// decompress opens the three forms that OCI knows. Docker's media types and
// layers that live elsewhere are refused.
func decompress(mediaType string, from io.Reader) (io.ReadCloser, error) {
	switch mediaType {
	case ispec.MediaTypeImageLayer:
		return io.NopCloser(from), nil
	case ispec.MediaTypeImageLayerGzip:
		reader, err := gzip.NewReader(from)
		if err != nil {
			return nil, refuse("", "a layer is not the gzip stream that it claims to be")
		}
		return reader, nil
	case ispec.MediaTypeImageLayerZstd:
		reader, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, refuse("", "a layer is not the zstd stream that it claims to be")
		}
		return reader.IOReadCloser(), nil
	}
	return nil, refuse("", "a layer has the type %.80q", mediaType)
}

// hashed hashes what passes and refuses to pass more than left bytes: a small
// blob can unpack to a large stream.
type hashed struct {
	from io.Reader
	hash hash.Hash
	left int64
}

// Read implements io.Reader.
func (h *hashed) Read(into []byte) (int, error) {
	n, err := h.from.Read(into)
	h.left -= int64(n)
	if h.left < 0 {
		return 0, refuse("", "the layers unpack to more than the limit")
	}
	h.hash.Write(into[:n])
	return n, err
}
