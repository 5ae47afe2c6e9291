// Package images keeps the root file systems that jobs run on: it builds a
// toolchain's image, gives it a digest, unpacks it and hands out its path.
//
// The store is host-wide and content-addressed. Every daemon of the host reads
// it, only the `image` commands write it, and a job never does. An image
// appears in one step, whole, or not at all:
//
//	DIR/index.json            which images there are, written whole and synced
//	DIR/lock                  held (flock) by the one build or gc that runs
//	DIR/sha256/HEX/layout     the OCI layout, as the digest describes it
//	DIR/sha256/HEX/root       the same, unpacked; ids are those in the image
//	DIR/tmp/NAME              work of a build; a leftover belongs to a crash
//
// Layers are foreign bytes. They are parsed in a child process that may write
// below one directory, has no network and four capabilities (UnpackMain), and
// that refuses whatever a root file system has no need for (survey.go). The
// package knows nothing of sandboxes, policies or the control plane.
//
// Start reading at Store.Build.
package images
