package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
)

// bareImage stands for the root of sandboxes without an image: directories only.
const bareImage images.Digest = "none"

// bareDirs are what a runtime mounts over, and where ours goes.
var bareDirs = []string{".veyra", "dev", "etc", "home", "home/veyra", "proc", "run", "sys", "tmp", "var", "var/tmp", "workspace"}

// image returns the engine's id of an image of the store, which it gets on first
// use: engines have a store of their own, and nothing of ours can be mounted as a
// container's root. The engine names it by our digest. An id means nothing to
// another engine, so it is looked up again for each sandbox.
func (d *Driver) image(ctx context.Context, digest images.Digest) (string, error) {
	select {
	case d.importing <- struct{}{}:
		defer func() { <-d.importing }()
	case <-ctx.Done(): // an import takes minutes
		return "", ctx.Err()
	}
	ref := refOf(digest)
	found, err := d.engine.lookup(ctx, ref)
	if isMissing(err) {
		if err := d.load(ctx, ref, digest); err != nil {
			return "", err
		}
		d.dropImages(ctx)
		found, err = d.engine.lookup(ctx, ref)
	}
	if err != nil {
		return "", startError("finding the engine's image", err)
	}
	if found.label != string(digest) || !found.plain {
		return "", &sandbox.Error{Kind: sandbox.KindStart, Op: "using the engine's image " + ref, Err: errors.New(
			"it is not the one that was imported, or brings volumes or settings of its own; remove it from the engine (docker image rm " + ref + ")")}
	}
	return found.id, nil
}

// refOf is the engine's name of an image of ours.
func refOf(digest images.Digest) string {
	return "veyra-image:" + strings.TrimPrefix(string(digest), "sha256:")
}

// dropImages removes what was imported of images that the store hasn't got any
// more: a rebuilt image leaves its predecessor in every engine.
func (d *Driver) dropImages(ctx context.Context) {
	found, err := d.engine.images(ctx)
	if err == nil && d.config.Images != nil {
		for _, i := range found {
			digest, bad := images.ParseDigest(i.label)
			if bad != nil {
				continue // the bare one, or nothing that we know
			}
			if _, gone := d.config.Images.Lookup(string(digest)); errors.Is(gone, images.ErrMissing) {
				err = errors.Join(err, d.engine.forgetImage(ctx, refOf(digest)))
			}
		}
	}
	if err != nil {
		d.config.Log.Warn("removing images that are of no use any more from the engine", "err", err)
	}
}

// load streams the image's root to the engine, uncompressed: an engine unpacks
// anything else with programs that it looks for.
func (d *Driver) load(ctx context.Context, ref string, digest images.Digest) error {
	var write func(*tar.Writer) error
	if digest == bareImage {
		write = writeBare
	} else {
		root, release, err := d.hold(digest)
		if err != nil {
			return err
		}
		defer release()
		write = func(w *tar.Writer) error { return writeTree(ctx, w, root) }
	}
	began := time.Now()
	d.config.Log.Info("importing an image into the Docker Engine", "image", string(digest))
	reader, writer := io.Pipe()
	go func() { // ends with the import: it closes the reader
		archive := tar.NewWriter(writer)
		writer.CloseWithError(errors.Join(write(archive), archive.Close()))
	}()
	err := d.engine.load(ctx, ref, string(digest), reader)
	_ = reader.Close()
	if err != nil {
		return startError("importing image", err)
	}
	d.config.Log.Info("imported", "image", string(digest), "seconds", int(time.Since(began).Seconds()))
	return nil
}

// hold keeps the image from being collected while it is read.
func (d *Driver) hold(digest images.Digest) (root string, release func(), err error) {
	if d.config.Images == nil {
		return "", nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "using an image: there is no store"}
	}
	held, err := d.config.Images.Hold(digest)
	if err != nil {
		return "", nil, &sandbox.Error{Kind: sandbox.KindRefused, Op: "holding image", Err: err}
	}
	root, err = d.config.Images.Root(digest)
	if err != nil {
		return "", nil, errors.Join(&sandbox.Error{Kind: sandbox.KindRefused, Op: "finding image", Err: err}, held.Close())
	}
	return root, func() { _ = held.Close() }, nil
}

func writeBare(w *tar.Writer) error {
	for _, name := range bareDirs {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}); err != nil {
			return err
		}
	}
	return nil
}

// writeTree archives directories, files and links of an image root, which the
// store has checked; nothing else is in one that a sandbox would get.
func writeTree(ctx context.Context, w *tar.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if err := writeEntry(w, path, rel); err != nil {
			return fmt.Errorf("archiving image: %q: %w", rel, err)
		}
		return nil
	})
}

func writeEntry(w *tar.Writer, path, name string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		return writeFile(w, h, path)
	default:
		return nil // a device or FIFO: the sandbox has its own
	}
	return w.WriteHeader(h)
}

func writeFile(w *tar.Writer, h *tar.Header, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
