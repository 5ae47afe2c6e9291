//go:build cgo

package images

// cgoBuild: see cgo_off.go.
const cgoBuild = true
