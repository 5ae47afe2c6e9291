package worker_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
	"github.com/veyra-labs/veyra-sandboxd/gitops/githosttest"
	"github.com/veyra-labs/veyra-sandboxd/gitops/worker"
)

// cpu gives the CPU time that this process or its ended children have used.
func cpu(b *testing.B, who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// largeTree has 13,000 files and about 106 MB of words.
func largeTree() map[string]githosttest.File {
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 3000)
	for i := range words {
		words[i] = fmt.Sprintf("%x ", r.Uint64()>>(20+r.IntN(30)))
	}
	out := map[string]githosttest.File{}
	for i := range 13_000 {
		var text strings.Builder
		for n := int(r.ExpFloat64() * 8200); text.Len() < n; {
			text.WriteString(words[r.IntN(len(words))])
		}
		out[fmt.Sprintf("d%d/e%d/f%d", i%130, i%7, i)] = githosttest.Text(text.String())
	}
	return out
}

// BenchmarkBaseLayer writes the base layer of a large repository and shows its
// CPU time as a ratio to `git clone --depth 1` of the same (bound: 2). The
// clone's figure includes the local server's half, ours the scan before.
func BenchmarkBaseLayer(b *testing.B) {
	dir := b.TempDir()
	host := githosttest.New(dir)
	commit, err := host.CreateRepo("o", "large", largeTree())
	if err != nil {
		b.Fatal(err)
	}
	packed := []byte(cli{host.Bare("o", "large")}.git(b, []byte(commit+"\n"), "pack-objects", "--quiet", "--revs", "--stdout", "--delta-base-offset"))
	var ours, gits time.Duration
	for i := 0; b.Loop(); i++ {
		at := filepath.Join(dir, fmt.Sprint("run", i))
		p := worker.Places{Objects: at + "/objects", Workspace: at + "/ws"}
		if err := os.MkdirAll(p.Workspace, 0o755); err != nil {
			b.Fatal(err)
		}
		before := cpu(b, syscall.RUSAGE_SELF)
		err := worker.Index(bytes.NewReader(packed), gitops.NewReplyWriter(io.Discard), p, gitops.ObjectID(commit), gitops.DefaultLimits())
		if err != nil {
			b.Fatal(err)
		}
		ours += cpu(b, syscall.RUSAGE_SELF) - before
		before = cpu(b, syscall.RUSAGE_CHILDREN)
		clone := exec.Command("git", "clone", "--quiet", "--depth", "1", "file://"+host.Bare("o", "large"), at+"/clone")
		clone.Env = githosttest.Environ()
		if out, err := clone.CombinedOutput(); err != nil {
			b.Fatalf("git clone: %v: %s", err, out)
		}
		gits += cpu(b, syscall.RUSAGE_CHILDREN) - before
		_ = os.RemoveAll(at)
	}
	b.ReportMetric(ours.Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(gits.Seconds()/float64(b.N), "git-cpu-s/op")
	b.ReportMetric(ours.Seconds()/gits.Seconds(), "ratio")
}
