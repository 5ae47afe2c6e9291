// Command weakrunc stands in a test for an OCI runtime that leaves something
// out: it takes parts off the bundle's config.json, or says that it is of
// another version, and then is the real runtime. What it does stands in the file
// beside it that has its name and ".json".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

type orders struct {
	Real    string   // the real runtime's file
	Version string   // what --version says; empty: the truth
	Take    []string // parts to leave out, see takers
}

type object = map[string]any

// takers take one part off a config.
var takers = map[string]func(config object){
	"seccomp":        func(c object) { delete(c["linux"].(object), "seccomp") },
	"pids":           func(c object) { delete(resources(c), "pids") },
	"memory":         func(c object) { delete(resources(c), "memory") },
	"cpu":            func(c object) { delete(resources(c), "cpu") },
	"network":        func(c object) { leaveOut(c, "network") },
	"root_read_only": func(c object) { c["root"].(object)["readonly"] = false },
	// What reading back can't see: a filter that refuses nothing, a workspace that
	// is not on the disk with the quota, files that are shown.
	"profile": func(c object) {
		filter := c["linux"].(object)["seccomp"].(object)
		filter["defaultAction"] = "SCMP_ACT_ALLOW"
		filter["syscalls"] = []any{object{"names": []any{"acct"}, "action": "SCMP_ACT_ERRNO"}}
	},
	"quota": func(c object) {
		for _, m := range c["mounts"].([]any) {
			if m := m.(object); m["destination"] == "/workspace" {
				m["type"], m["source"], m["options"] = "tmpfs", "tmpfs", []any{"rw", "nosuid", "nodev", "mode=1777", "size=300m"}
			}
		}
	},
	"masks": func(c object) { c["linux"].(object)["maskedPaths"] = []any{} },
}

func resources(c object) object { return c["linux"].(object)["resources"].(object) }

// leaveOut shares a namespace with the runner.
func leaveOut(c object, kind string) {
	linux := c["linux"].(object)
	linux["namespaces"] = slices.DeleteFunc(linux["namespaces"].([]any), func(n any) bool { return n.(object)["type"] == kind })
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "weakrunc:", err)
		os.Exit(1)
	}
}

func run() error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(own + ".json")
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if o.Version != "" && slices.Contains(os.Args, "--version") {
		fmt.Printf("runc version %s\n", o.Version)
		return nil
	}
	if i := slices.Index(os.Args, "--bundle"); i >= 0 && len(o.Take) > 0 {
		if err := weaken(filepath.Join(os.Args[i+1], "config.json"), o.Take); err != nil {
			return err
		}
	}
	return syscall.Exec(o.Real, append([]string{"runc"}, os.Args[1:]...), os.Environ())
}

func weaken(path string, parts []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config object
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	for _, part := range parts {
		takers[part](config)
	}
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
