// Package worker is the git half that touches objects. It runs as veyra-git
// inside a sandbox: no network, no token, only its pipes, a work tree and a
// directory for objects. It parses what a stranger's server sent, so it is
// built to be killed: nothing here cleans up, and the sandbox is thrown away.
//
// go-git is used as a plumbing library only: the pack parser, the index and
// the reading of single objects. Trees are parsed and written here, strictly:
// what does not read back to the same bytes is unsupported, so that no name is
// ever lost on the way (attack cases E10 and E11).
//
// Start reading at Run; index.go, commit.go, hash.go and ignore.go are the
// four modes, prescan.go is what a pack has to pass first.
package worker
