// Command veyra-git is the git worker that runs inside a sandbox, as
// /.veyra/git: a static program with no network use and no secrets. Its
// modes and frames are described in the package gitops; all it does is in
// gitops/worker.
package main

import (
	"os"

	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

func main() { os.Exit(worker.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
