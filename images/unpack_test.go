package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/veyra-labs/veyra-sandboxd/images"
)

// needRoot skips what only root can do: give files to others, make namespaces.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not applicable: unpacking images needs root")
	}
	if images.CgoBuild {
		t.Skip("not applicable: layers are parsed only by a build without cgo")
	}
}

func openStore(t *testing.T) (*images.Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	store, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return store, dir
}

func importInto(t *testing.T, store *images.Store, l *layout) (images.Image, string) {
	t.Helper()
	image, err := store.Import(t.Context(), l.dir, "test", l.seal())
	if err != nil {
		t.Fatalf("importing: %v", err)
	}
	root, err := store.Root(image.Digest)
	if err != nil {
		t.Fatalf("finding the root: %v", err)
	}
	return image, root
}

// tree describes every file below root in one line.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		status := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%v %d:%d", info.Mode(), status.Uid, status.Gid)
		if entry.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		if entry.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" links %d %q", status.Nlink, text)
		}
		name, err := filepath.Rel(root, path)
		found[name] = line
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestUnpackedRootIsWhatTheLayersSay(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.layer(base(
		symlink("./bin", "usr/bin"), dir("./usr"), dir("./usr/bin"), file("./usr/bin/su", "setuid").mode(0o4755),
		hardLink("./usr/bin/su2", "./usr/bin/su"), symlink("./etc/absolute", "/etc/name"),
		dir("./workspace").owned(1000, 1000), file("./old", "old"), dir("./opt"), file("./opt/a", "a"), file("./opt/b", "b"),
		dir("./var/"), symlink("./var/run", "/run"),
	))
	l.raw(ispec.MediaTypeImageLayer, archive(t, []entry{file("./.wh.old", ""), dir("./opt"), file("./opt/.wh..wh..opq", ""), file("./opt/c", "c")}))
	l.raw(ispec.MediaTypeImageLayerZstd, archive(t, []entry{file("./etc/name", "another").owned(7, 8), file("./var/.wh.run", "")}))
	image, root := importInto(t, openOnly(t), l)
	want := map[string]string{
		".": "drwxr-xr-x 0:0", "dev": "drwxr-xr-x 0:0", "proc": "drwxr-xr-x 0:0", "sys": "drwxr-xr-x 0:0", "etc": "drwxr-xr-x 0:0",
		"etc/name":     `-rw-r--r-- 7:8 links 1 "another"`,
		"etc/absolute": "Lrwxrwxrwx 0:0 -> /etc/name",
		"bin":          "Lrwxrwxrwx 0:0 -> usr/bin", "usr": "drwxr-xr-x 0:0", "usr/bin": "drwxr-xr-x 0:0",
		"usr/bin/su": `urwxr-xr-x 0:0 links 2 "setuid"`, "usr/bin/su2": `urwxr-xr-x 0:0 links 2 "setuid"`,
		"workspace": "drwxr-xr-x 1000:1000", "opt": "drwxr-xr-x 0:0", "opt/c": `-rw-r--r-- 0:0 links 1 "c"`, "var": "drwxr-xr-x 0:0",
	}
	if diff := cmp.Diff(want, tree(t, root)); diff != "" {
		t.Errorf("root differs (-want +got):\n%s", diff)
	}
	if image.Bytes <= 0 {
		t.Errorf("image takes %d bytes", image.Bytes)
	}
}

func openOnly(t *testing.T) *images.Store {
	store, _ := openStore(t)
	return store
}

// expectRefusal imports and wants a RefusedError and nothing left of the image.
func expectRefusal(t *testing.T, l *layout, limits images.Limits, reason string) {
	t.Helper()
	store, dir := openStore(t)
	store.SetLimits(limits)
	canary := filepath.Join(filepath.Dir(dir), "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	sealed := l.seal()
	_, err := store.Import(t.Context(), l.dir, "test", sealed)
	var refused *images.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("importing: got %v, want a refusal", err)
	}
	if !strings.Contains(refused.Reason, reason) {
		t.Errorf("refused because %q, want %q", refused.Reason, reason)
	}
	expectNothing(t, store, dir, sealed)
	if text, err := os.ReadFile(canary); string(text) != "untouched" {
		t.Errorf("file beside the store: %q, %v", text, err)
	}
}

// expectNothing wants a store without a trace of the image.
func expectNothing(t *testing.T, store *images.Store, dir string, sealed images.Digest) {
	t.Helper()
	if list, err := store.List(); err != nil || len(list) != 0 {
		t.Errorf("list after a refusal: %v, %v", list, err)
	}
	if _, err := store.Root(sealed); !errors.Is(err, images.ErrMissing) {
		t.Errorf("root after a refusal: %v", err)
	}
	for _, left := range []string{"tmp", "sha256"} {
		if entries, err := os.ReadDir(filepath.Join(dir, left)); err == nil && len(entries) > 0 {
			t.Errorf("left in %s: %v", left, entries)
		}
	}
}

func TestA17HostileEntriesAreRefused(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name, reason string
		entries      []entry
	}{
		{"dot dot", `component ".."`, base(file("./../../../canary", "x"))},
		{"dot dot inside", `component ".."`, base(file("./etc/../etc/x", "x"))},
		{"absolute", "absolute", base(file("/canary", "x"))},
		{"empty component", "component", base(file("./etc//x", "x"))},
		{"through a link", "leads through the link", base(symlink("./out", "/tmp"), file("./out/x", "x"))},
		{"through a link, directory", "leads through the link", base(symlink("./out", "../.."), dir("./out/x"))},
		{"through a file", "leads through the file", base(file("./etc/name/x", "x"))},
		{"outward hard link", `component ".."`, base(hardLink("./x", "../../../canary"))},
		{"absolute hard link", "absolute", base(hardLink("./x", "/etc/shadow"))},
		{"hard link through a link", "leads through the link", base(symlink("./out", "/etc"), hardLink("./x", "out/shadow"))},
		{"hard link to a link", "not a file of this image", base(symlink("./out", "/etc/shadow"), hardLink("./x", "out"))},
		{"hard link to nothing", "not a file of this image", base(hardLink("./x", "etc/absent"))},
		{"character device", "device", base(special("./etc/null", tar.TypeChar))},
		{"block device", "device", base(special("./etc/disk", tar.TypeBlock))},
		{"pipe", "device, a pipe", base(special("./etc/fifo", tar.TypeFifo))},
		{"device in dev", "device", base(special("./dev/null", tar.TypeChar))},
		{"overlay attribute", "extended attribute", base(dir("./x").with("SCHILY.xattr.trusted.overlay.opaque", "y"))},
		{"overlay attribute of users", "extended attribute", base(dir("./x").with("SCHILY.xattr.user.overlay.redirect", "/etc"))},
		{"file capability", "extended attribute", base(file("./x", "").with("SCHILY.xattr.security.capability", "\x01\x00"))},
		{"foreign id", "belongs to an id", base(file("./x", "").owned(65_536, 0))},
		{"negative id", "belongs to an id", base(file("./x", "").owned(0, -5))},
		{"odd whiteout", "no known form", base(file("./.wh..", ""))},
		{"whiteout of aufs", "no known form", base(file("./.wh..wh.plnk", ""))},
		{"whiteout with content", "not an empty file", base(file("./.wh.etc", "x"))},
		{"deep", "directories deep", base(file("./"+strings.Repeat("d/", 200)+"x", "x"))},
		{"root is a file", "replace the root", []entry{file(".", "x")}},
		{"A06 dev is a link", "not a directory", []entry{dir("./"), symlink("./dev", "/etc"), dir("./proc"), dir("./sys")}},
		{"A06 proc is a link", "not a directory", []entry{dir("./"), dir("./dev"), symlink("./proc", "."), dir("./sys")}},
		{"A06 sys is missing", "is missing", []entry{dir("./"), dir("./dev"), dir("./proc")}},
		{"A06 dev null is a link", "into /dev", base(symlink("./dev/null", "/etc/shadow"))},
		{"A06 proc is filled", "into /proc", base(file("./proc/version", "x"))},
		{"root closed to others", "has mode", append([]entry{dir("./").mode(0o700)}, base()[1:]...)},
		{"dev of another", "belongs to uid", []entry{dir("./"), dir("./dev").owned(1000, 0), dir("./proc"), dir("./sys")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectRefusal(t, newLayout(t).layer(c.entries), images.DefaultLimits(), c.reason)
		})
	}
}

// A link that a lower layer made is there for the entries of the next.
func TestA17LinksOfLowerLayersAreRemembered(t *testing.T) {
	needRoot(t)
	l := newLayout(t).layer(base(symlink("./out", "/tmp")))
	expectRefusal(t, l.layer([]entry{file("./out/x", "x")}), images.DefaultLimits(), "leads through the link")
}

func TestA17BombsAreRefused(t *testing.T) {
	needRoot(t)
	small := images.Limits{Layers: 3, Entries: 20, Blob: 1 << 20, Bytes: 1 << 20}
	zeros := strings.Repeat("\x00", 2<<20)
	many := base()
	for i := range 30 {
		many = append(many, file(fmt.Sprintf("./f%d", i), ""))
	}
	cases := map[string]struct {
		layout *layout
		reason string
	}{
		"entries":        {newLayout(t).layer(many), "more than 20 entries"},
		"one large file": {newLayout(t).layer(base(file("./zeros", zeros))), "larger than"},
		"sum of files":   {newLayout(t).layer(base(file("./a", zeros[:700_000]), file("./b", zeros[:700_000]))), "larger than"},
		"sum of layers":  {newLayout(t).layer(base(file("./a", zeros[:700_000]))).layer([]entry{file("./b", zeros[:700_000])}), "larger than"},
		"layers":         {newLayout(t).layer(base()).layer(base()).layer(base()).layer(base()), "4 layers"},
		"no layer":       {newLayout(t), "0 layers"},
		"padding":        {newLayout(t).raw(ispec.MediaTypeImageLayerGzip, append(archive(t, base()), zeros+zeros...)), "unpack to more"},
		"large blob":     {newLayout(t).raw(ispec.MediaTypeImageLayer, append(archive(t, base()), zeros...)), "larger than 1048576"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { expectRefusal(t, c.layout, small, c.reason) })
	}
}

func TestA17WrongHashesAreRefused(t *testing.T) {
	needRoot(t)
	other := digest.FromString("something else")
	cases := map[string]struct {
		spoil  func(*layout)
		reason string
	}{
		// The same archive, packed otherwise: only the blob's own hash is wrong.
		"layer": {func(l *layout) {
			l.write(blobName(l.manifest.Layers[0].Digest), append(pack(t, archive(t, base())), pack(t, nil)...))
		}, "has another hash"},
		"layer with another content": {func(l *layout) {
			l.write(blobName(l.manifest.Layers[0].Digest), pack(t, archive(t, base(file("./x", "")))))
		}, "another hash"},
		"DiffID":          {func(l *layout) { l.config.RootFS.DiffIDs[0] = other }, "another hash than the config's"},
		"DiffID missing":  {func(l *layout) { l.config.RootFS.DiffIDs = nil }, "0 hashes for 1 layers"},
		"rootfs type":     {func(l *layout) { l.config.RootFS.Type = "magic" }, "hashes for"},
		"layer missing":   {func(l *layout) { l.manifest.Layers[0].Digest = other }, "missing"},
		"layer elsewhere": {func(l *layout) { l.manifest.Layers[0].Digest = "sha256:../../../../etc/passwd" }, "not a sha256 digest"},
		"sha512":          {func(l *layout) { l.manifest.Layers[0].Digest = digest.SHA512.FromString("x") }, "not a sha256 digest"},
		"blob is a link": {func(l *layout) {
			name := filepath.Join(l.dir, blobName(l.manifest.Layers[0].Digest))
			os.Rename(name, name+"-moved")
			os.Symlink(name+"-moved", name)
		}, "missing"},
		"docker's layer type":    {func(l *layout) { l.manifest.Layers[0].MediaType = "application/vnd.docker.image.rootfs.diff.tar.gzip" }, "has the type"},
		"docker's manifest type": {func(l *layout) { l.manifest.MediaType = "application/vnd.docker.distribution.manifest.v2+json" }, "manifest is of type"},
		"no gzip": {func(l *layout) {
			l.raw(ispec.MediaTypeImageLayer, []byte("x"))
			l.manifest.Layers[1].MediaType = ispec.MediaTypeImageLayerGzip
		}, "gzip"},
		"no zstd": {func(l *layout) {
			l.raw(ispec.MediaTypeImageLayer, []byte("x"))
			l.manifest.Layers[1].MediaType = ispec.MediaTypeImageLayerZstd
		}, "not a tar archive"},
		"cut off": {func(l *layout) {
			l.raw(ispec.MediaTypeImageLayer, archive(t, base(file("./x", "content")))[:5000])
		}, "not a tar archive"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLayout(t).layer(base())
			c.spoil(l)
			expectRefusal(t, l, images.DefaultLimits(), c.reason)
		})
	}
}

func pack(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	if _, err := writer.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestA17ManifestWithAnotherHashIsRefused(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	l := newLayout(t).layer(base())
	sealed := l.seal()
	l.write(blobName(digest.Digest(sealed)), []byte(`{"schemaVersion":2}`))
	_, err := store.Import(t.Context(), l.dir, "test", sealed)
	var refused *images.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "another hash") {
		t.Errorf("importing: %v", err)
	}
	expectNothing(t, store, dir, sealed)
}

func TestCancelledUnpackLeavesNothing(t *testing.T) {
	needRoot(t)
	store, dir := openStore(t)
	l := newLayout(t).layer(base())
	sealed := l.seal()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Import(ctx, l.dir, "test", sealed); !errors.Is(err, context.Canceled) {
		t.Errorf("importing: %v", err)
	}
	expectNothing(t, store, dir, sealed)
}
