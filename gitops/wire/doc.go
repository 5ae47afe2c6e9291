// Package wire speaks git's smart HTTP for the supervisor: list refs, fetch a
// pack, push one branch. It has the repository's token and understands
// pkt-lines only; a pack goes through it as bytes, from the server into a
// sandbox or from a spool file to the server, and no object is ever parsed
// here.
//
// It dials nothing but <pinned origin>/<owner>/<name>.git, follows at most one
// redirect and that on GET only, and never sends the token anywhere else. Text
// from the server reaches no path, argument or error that leaves the local
// log.
//
// Start reading at Remote; fetch.go and push.go are the two conversations,
// pktline.go the framing below both.
package wire
