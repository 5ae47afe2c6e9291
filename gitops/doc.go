// Package gitops holds what the supervisor and the git worker say to each
// other: the frames on veyra-git's standard streams, the manifest of a base
// tree, change sets and commit ids.
//
// Nothing here reads a git object. The worker (gitops/worker, inside a
// sandbox) has parsed a stranger's pack by the time it answers, so every
// answer is read as hostile input: lengths are capped, ids are 40 hex digits,
// names are checked again, and a commit's id is computed on this side from
// the request and the tree id alone.
//
// Start reading at CommitRequest and Manifest; frames.go lists the frames of
// each mode of veyra-git, and reading.go takes the answers apart. All
// functions are pure functions of their readers and writers; values may be
// shared between goroutines once built.
package gitops
