package gitops

// Limits bounds what a repository and an answer about it may hold. Sizes are
// bytes. A value that is reached is fine, one above it is KindTooLarge.
type Limits struct {
	Object   int64 // one object, inflated
	Pack     int64 // a pack as it travels
	Inflated int64 // all objects of a pack, inflated
	Objects  int64 // objects in a pack
	Chain    int   // deltas on top of each other
	Entries  int   // paths of a tree
	Depth    int   // directories above a file
	Path     int   // a path
	Name     int   // a part of a path
	Changes  int   // changed paths of a commit
	Paths    int64 // bytes of all paths of an answer together
}

// DefaultLimits are the bounds for a base tree and its pack: the host's own
// cap of 100 MiB for a file, and totals that fit a sandbox's disk.
func DefaultLimits() Limits {
	return Limits{
		Object: 100 << 20, Pack: 1 << 30, Inflated: 4 << 30, Objects: 2_000_000,
		Chain: 4_095, Entries: 200_000, Depth: 64, Path: 4_096, Name: 255, Changes: 100_000, Paths: 32 << 20,
	}
}
