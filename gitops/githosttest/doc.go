// Package githosttest is a git host for tests and for trying things out: real
// bare repositories behind `git http-backend`, and the few REST calls of a
// pull request in GitHub's form. It checks tokens, refuses protected refs,
// and can lose or break any answer. It needs the git command.
//
// It is no production server: it trusts its callers' names, and repositories
// belong to the user that runs it. Start reading at New.
package githosttest
