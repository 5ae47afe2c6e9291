// Package pulls opens a pull request and reads back what the host shows of it,
// over a GitHub-like REST interface. It has the repository's token and knows
// two calls that write nothing twice: a pull request is looked for before one
// is made, and one that was found counts only if it is ours.
//
// What the host answers is hostile: bodies are capped, addresses in answers
// are recorded and never dialled, and the changed files are compared with the
// commit's own list (files.go). The body of a pull request is written here,
// too (body.go), since it carries a model's text to readers.
//
// Start reading at Client.
package pulls
