package worker_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// BenchmarkCommit commits and packs three changed files of 13,000 and shows its
// CPU time as a ratio to git's for the same: add, commit, pack-objects (bound:
// 0.5). The push itself is the same request for both.
func BenchmarkCommit(b *testing.B) {
	dir := b.TempDir()
	host := githosttest.New(dir)
	files := map[string]githosttest.File{}
	for i := range 13_000 {
		files[fmt.Sprintf("d%d/e%d/f%d", i%130, i%7, i)] = githosttest.Text(fmt.Sprintf("file %d\n", i))
	}
	head, err := host.CreateRepo("o", "many", files)
	if err != nil {
		b.Fatal(err)
	}
	p := worker.Places{Objects: dir + "/objects", Workspace: dir + "/ws"}
	clone := cli{filepath.Join(dir, "clone", ".git")}
	if err := os.Mkdir(p.Workspace, 0o755); err != nil {
		b.Fatal(err)
	}
	index(b, cli{host.Bare("o", "many")}.pack(b, head), p, head)
	inDir(b, "", "clone", "--quiet", "--depth", "1", "file://"+host.Bare("o", "many"), filepath.Dir(clone.dir))
	changed := []string{"d0/e0/f0", "d1/e1/f1", "d2/e2/f2"}
	var ours, gits time.Duration
	for i := 0; b.Loop(); i++ {
		req := gitops.CommitRequest{Parent: gitops.ObjectID(head), Date: time.Unix(1_750_000_000, 0), Message: "Veyra job 7: title\n"}
		for _, name := range changed {
			write(b, p.Workspace, name, i)
			write(b, filepath.Dir(clone.dir), name, i)
			req.Changes = append(req.Changes, gitops.Change{Path: name, Kind: gitops.ChangeWrite})
		}
		before := cpu(b, syscall.RUSAGE_SELF)
		if reply, _ := commit(b, p, req); len(reply.Changed) != len(changed) {
			b.Fatalf("changed %v", reply.Changed)
		}
		ours += cpu(b, syscall.RUSAGE_SELF) - before
		before = cpu(b, syscall.RUSAGE_CHILDREN)
		inDir(b, filepath.Dir(clone.dir), "add", "--all")
		inDir(b, filepath.Dir(clone.dir), "commit", "--quiet", "--message", "title")
		clone.git(b, []byte("HEAD\n^HEAD~1\n"), "pack-objects", "--quiet", "--revs", "--stdout", "--thin")
		gits += cpu(b, syscall.RUSAGE_CHILDREN) - before
	}
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(gits.Microseconds())/1000/float64(b.N), "git-cpu-ms/op")
	b.ReportMetric(ours.Seconds()/gits.Seconds(), "ratio")
}

func write(b *testing.B, dir, name string, i int) {
	if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "%s in round %d\n", name, i), 0o644); err != nil {
		b.Fatal(err)
	}
}

func inDir(b *testing.B, dir string, args ...string) {
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0"}, args...)...)
	cmd.Dir, cmd.Env = dir, githosttest.Environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("git %q: %v: %s", args, err, out)
	}
}
