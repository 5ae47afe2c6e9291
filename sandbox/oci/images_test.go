package oci_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/proof"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
)

// hostileDigest names the image of a store that forge made.
const hostileDigest images.Digest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

// forge makes a store by hand, with an image that no import would let in: what
// the driver relies on must hold all the same.
func forge(t *testing.T, change func(root string) error) string {
	t.Helper()
	store := t.TempDir()
	root := filepath.Join(store, "sha256", string(hostileDigest)[len("sha256:"):], "root")
	var failed error
	for _, dir := range []string{"dev", "proc", "sys", "bin", "etc", "usr"} {
		failed = errors.Join(failed, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	if err := errors.Join(failed, os.Chmod(store, 0o755), change(root)); err != nil {
		t.Fatal(err)
	}
	return store
}

// ledAstray has links wherever a start or a command might follow one.
func ledAstray(root string) error {
	var failed error
	for name, target := range map[string]string{
		"bin/sh": "/proc/self/exe", "bin/one": "/proc/1/exe", "bin/true": "../proc/self/exe", ".veyra": "/etc", "workspace": "/",
		"home": "/proc/1/root", "tmp": "/etc", "var": "/proc/1/root/var", "run": "/", "etc/hosts": "/proc/1/environ",
		"etc/resolv.conf": "/proc/1/mem", "etc/passwd": "/proc/1/maps", "etc/ld.so.preload": "/proc/self/exe",
	} {
		failed = errors.Join(failed, os.Symlink(target, filepath.Join(root, name)))
	}
	script := filepath.Join(root, "bin", "entry")
	return errors.Join(failed, os.WriteFile(script, []byte("#!/proc/self/exe\n"), 0o600), os.Chmod(script, 0o755))
}

// TestA05ImageThatLeadsAstray: an image whose programs are links to whatever
// runs them. The files that the host executes keep their bytes, and the sandbox
// is what it would be on any other image.
func TestA05ImageThatLeadsAstray(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			config := configOf(t, "test-a05-"+runtime, runtime)
			config.Images = forge(t, ledAstray)
			c := start(t, config)
			own, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			before := hashes(t, config.Runtime, config.Init, own)
			box := onHostile(t, c)
			for _, argv := range [][]string{
				{"sh", "-c", "echo x > /proc/self/exe"},
				{"true"},
				{"one"},
				{"entry"},
				{"/bin/entry", "x"},
				{"/bin/sh"},
				{sandbox.InitPath, attack.Mode, attack.Init},
				{sandbox.InitPath, attack.Mode, attack.SetID},
			} {
				if _, err := box.Run(t.Context(), sandbox.Command{Argv: argv}); err != nil {
					t.Errorf("%q: %v", argv, err)
				}
			}
			for _, control := range []string{"identity", "init_out_of_reach", "root", "descriptors", "host_paths", "masked"} {
				got, err := proof.Config{Isolation: isolations[runtime]}.One(t.Context(), box, small(t), control)
				if err != nil || !got.Enforced {
					t.Errorf("%s: %v %s", control, err, got.Seen)
				}
			}
			if diff := cmp.Diff(before, hashes(t, config.Runtime, config.Init, own)); diff != "" {
				t.Errorf("programs of the host (-before +after):\n%s", diff)
			}
		})
	}
}

func onHostile(t *testing.T, c *runner.Client) sandbox.Sandbox {
	t.Helper()
	job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "hostile", Limits: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	box, err := job.Create(t.Context(), sandbox.Spec{
		Image: hostileDigest, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func hashes(t *testing.T, paths ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = fmt.Sprintf("%x", sha256.Sum256(raw))
	}
	return all
}

// TestA06RootsThatLeadMountsAstray: what a runtime would mount over must be a
// real directory or file, or no sandbox starts.
func TestA06RootsThatLeadMountsAstray(t *testing.T) {
	link := func(name, target string) func(string) error {
		return func(root string) error {
			path := filepath.Join(root, name)
			return errors.Join(os.RemoveAll(path), os.Symlink(target, path))
		}
	}
	for name, change := range map[string]func(string) error{
		"dev is a link":  link("dev", "/etc"),
		"proc is a link": link("proc", "."),
		"sys is a link":  link("sys", "../../../.."),
		"dev is missing": func(root string) error { return os.Remove(filepath.Join(root, "dev")) },
		"proc is a file": func(root string) error {
			return errors.Join(os.Remove(filepath.Join(root, "proc")), os.WriteFile(filepath.Join(root, "proc"), nil, 0o644))
		},
		"dev/null is a link":    link("dev/null", "/etc/shadow"),
		"dev/console is a link": link("dev/console", "/proc/sys/kernel/core_pattern"),
		"dev/pts is a link":     link("dev/pts", "/"),
		"dev/shm is a link":     link("dev/shm", "/"),
		"others may write":      func(root string) error { return os.Chmod(filepath.Join(root, "sys"), 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			config := config(t, "test-a06")
			config.Images = forge(t, change)
			c := start(t, config)
			job, err := c.OpenJob(t.Context(), sandbox.JobSpec{ID: "a06", Limits: small(t)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = job.Create(t.Context(), sandbox.Spec{
				Image: hostileDigest, Network: sandbox.NetworkNone, Profile: sandbox.ProfileJob, Limits: small(t),
			})
			if sandbox.KindOf(err) != sandbox.KindRefused {
				t.Errorf("creating a sandbox: %v, want a refusal", err)
			}
		})
	}
}
