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
	"slices"
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

// copied is an image of the store, or the bare one, that an engine gets a copy of.
type copied struct {
	digest  images.Digest
	store   string // id of the store; empty: the bare one's, which is all stores'
	root    string
	release func() // lets the store collect it again
}

// take holds an image in the store. While it is held, nobody believes that the
// engine's copy is of no use any more.
func (d *Driver) take(digest images.Digest) (copied, error) {
	if digest == bareImage {
		return copied{digest: digest, release: func() {}}, nil
	}
	if d.config.Images == nil {
		return copied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "using an image: there is no store"}
	}
	held, err := d.config.Images.Hold(digest)
	if err != nil {
		return copied{}, &sandbox.Error{Kind: sandbox.KindRefused, Op: "holding image", Err: err}
	}
	root, err := d.config.Images.Root(digest)
	if err != nil {
		return copied{}, errors.Join(&sandbox.Error{Kind: sandbox.KindRefused, Op: "finding image", Err: err}, held.Close())
	}
	store, err := d.config.Images.ID()
	if err != nil {
		return copied{}, errors.Join(startError("naming the image store", err), held.Close())
	}
	return copied{digest, store, root, func() { _ = held.Close() }}, nil
}

// ref is the engine's name of the copy. Each store has copies of its own: an image
// that one has given up may be what another one's sandboxes start from.
func (c copied) ref() string {
	if c.store == "" {
		return imageName + string(c.digest)
	}
	return imageName + c.store + "-" + strings.TrimPrefix(string(c.digest), "sha256:")
}

const imageName = "veyra-image:"

func (c copied) labels() []string {
	all := []string{"LABEL " + labelImage + "=" + string(c.digest)}
	if c.store != "" {
		all = append(all, "LABEL "+labelStore+"="+c.store)
	}
	return all
}

// image returns the engine's id of a copy, which it gets on first use: engines have
// a store of their own, and nothing of ours can be mounted as a container's root.
// An id means nothing to another engine, so it is looked up again for each sandbox.
func (d *Driver) image(ctx context.Context, c copied) (string, error) {
	select {
	case d.importing <- struct{}{}:
		defer func() { <-d.importing }()
	case <-ctx.Done(): // an import takes minutes
		return "", ctx.Err()
	}
	found, err := d.engine.lookup(ctx, c.ref())
	if isMissing(err) {
		if err := d.load(ctx, c); err != nil {
			return "", err
		}
		d.dropImages(ctx, c.store)
		found, err = d.engine.lookup(ctx, c.ref())
	}
	if err != nil {
		return "", startError("finding the engine's image", err)
	}
	if found.label != string(c.digest) || found.store != c.store || !found.plain {
		return "", &sandbox.Error{Kind: sandbox.KindStart, Op: "using the engine's image " + c.ref(), Err: errors.New(
			"it is not the one that was imported, or brings volumes or settings of its own; remove it from the engine (docker image rm " + c.ref() + ")")}
	}
	return found.id, nil
}

// dropImages removes the copies of images that the store hasn't got any more: one
// that is built again leaves its predecessor in every engine. Copies of another
// store, and what got a name of somebody else's, stay.
func (d *Driver) dropImages(ctx context.Context, store string) {
	if store == "" {
		return
	}
	found, err := d.engine.images(ctx, store)
	for _, i := range found {
		if i.store == store && i.onlyOurs() && d.gone(i.label) {
			err = errors.Join(err, d.engine.forgetImage(ctx, i.id))
		}
	}
	if err != nil {
		d.config.Log.Warn("removing images that are of no use any more from the engine", "err", err)
	}
}

// gone says that the store hasn't got an image any more.
func (d *Driver) gone(label string) bool {
	digest, err := images.ParseDigest(label)
	if err != nil {
		return false // nothing that we know
	}
	_, err = d.config.Images.Lookup(string(digest))
	return errors.Is(err, images.ErrMissing)
}

// onlyOurs says that nobody gave the image another name. Without any it has lost
// its own to a newer copy.
func (i imageFound) onlyOurs() bool {
	return !slices.ContainsFunc(i.names, func(name string) bool {
		return name != "<none>:<none>" && !strings.HasPrefix(name, imageName)
	})
}

// load streams the image's root to the engine, uncompressed: an engine unpacks
// anything else with programs that it looks for.
func (d *Driver) load(ctx context.Context, c copied) error {
	write := writeBare
	if c.digest != bareImage {
		write = func(w *tar.Writer) error { return writeTree(ctx, w, c.root) }
	}
	began := time.Now()
	d.config.Log.Info("importing an image into the Docker Engine", "image", string(c.digest))
	if err := d.stream(ctx, c, write); err != nil {
		return startError("importing image", err)
	}
	d.config.Log.Info("imported", "image", string(c.digest), "seconds", int(time.Since(began).Seconds()))
	return nil
}

// stream returns when nothing reads the image's root any more.
func (d *Driver) stream(ctx context.Context, c copied, write func(*tar.Writer) error) error {
	reader, writer := io.Pipe()
	ended := make(chan struct{})
	go func() { // ends with the import: it closes the reader
		defer close(ended)
		archive := tar.NewWriter(writer)
		err := write(archive)
		if err == nil { // the end of an archive is a promise that it is whole
			err = archive.Close()
		}
		writer.CloseWithError(err)
	}()
	err := d.engine.load(ctx, c.ref(), c.labels(), reader)
	_ = reader.Close()
	<-ended
	return err
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
