//go:build !cgo

package images

// cgoBuild says that the threads of this build can't all be confined: Landlock
// by libpsx was seen to spin for ever in the first process of a namespace. The
// race detector makes such builds, releases never.
const cgoBuild = false
