package worker

import (
	"flag"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// Run is veyra-git: args without the program's name, a request on in, an
// answer on out. It gives the exit code: 0 for an answer, 1 for an answer that
// ends with an error frame, 2 for wrong arguments. The memory limit comes from
// the environment variable GOMEMLIMIT, which the Go runtime reads by itself.
func Run(args []string, in io.Reader, out, errs io.Writer) int {
	debug.SetGCPercent(50)
	mode, err := parseArgs(args)
	if err != nil {
		fmt.Fprintln(errs, "veyra-git:", err)
		return 2
	}
	reply := gitops.NewReplyWriter(out)
	if err = mode(in, reply); err != nil {
		reply.Fail(err)
	}
	if flushed := reply.Flush(); err == nil {
		err = flushed
	}
	if err != nil {
		return 1
	}
	return 0
}

type mode func(in io.Reader, out *gitops.ReplyWriter) error

func parseArgs(args []string) (mode, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no mode: index, commit, hash, ignore, history or difftrees")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var p Places
	flags.StringVar(&p.Objects, "objects", "", "directory of the object store")
	flags.StringVar(&p.Workspace, "workspace", "", "directory of the work tree")
	commit := flags.String("commit", "", "commit to write")
	var compared comparison
	flags.Func("head", "commit to compare", compared.setHead)
	flags.Func("base", "commit to compare head with; more than one for difftrees", compared.addBase)
	if err := flags.Parse(args[1:]); err != nil {
		return nil, err
	}
	lim := gitops.DefaultLimits()
	switch args[0] {
	case "index":
		id, err := gitops.ParseObjectID(*commit)
		return func(in io.Reader, out *gitops.ReplyWriter) error { return Index(in, out, p, id, lim) }, err
	case "commit":
		return func(in io.Reader, out *gitops.ReplyWriter) error { return Commit(in, out, p, lim) }, nil
	case "hash":
		return func(in io.Reader, out *gitops.ReplyWriter) error { return Hash(in, out, p, lim) }, nil
	case "ignore":
		return func(in io.Reader, out *gitops.ReplyWriter) error { return Ignore(in, out, p) }, nil
	case "history":
		return func(in io.Reader, out *gitops.ReplyWriter) error {
			return History(in, out, p, compared.head, compared.bases[0], lim)
		}, compared.check(1)
	case "difftrees":
		return func(in io.Reader, out *gitops.ReplyWriter) error {
			return DiffTrees(in, out, p, compared.head, compared.bases, lim)
		}, compared.check(gitops.MaxBases)
	}
	return nil, fmt.Errorf("unknown mode %q", args[0])
}

// comparison is what history and difftrees are asked about.
type comparison struct {
	head  gitops.ObjectID
	bases []gitops.ObjectID
}

func (c *comparison) setHead(s string) (err error) {
	c.head, err = gitops.ParseObjectID(s)
	return err
}

func (c *comparison) addBase(s string) error {
	id, err := gitops.ParseObjectID(s)
	c.bases = append(c.bases, id)
	return err
}

func (c *comparison) check(most int) error {
	if c.head == "" || len(c.bases) == 0 || len(c.bases) > most {
		return fmt.Errorf("%d bases and head %q: want 1 to %d and a commit", len(c.bases), c.head, most)
	}
	return nil
}
