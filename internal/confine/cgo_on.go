//go:build cgo

package confine

const cgoBuild = true
