// Command veyra-init is PID 1 of every sandbox. It runs commands as uid 1000,
// reaps whatever is left to it, streams output, and dies with the supervisor:
// the pipe of its frames is a dead-man switch, and with PID 1 the kernel ends
// everything else. It may not open a network connection, parse anything that a
// job wrote, or trust the other side's frames beyond their form.
//
// Run by uid 1000 with the words unpack, read or write it is an ordinary
// program that places or reads files; see modes.go. With the word attack it is
// one that tries to break out, to prove that it can't; see attack.go. Start
// reading at serve.
//
// The directives keep the Go runtime from holding cgroup files open.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"fmt"
	"os"
	"runtime"
)

// The leader thread stays with main: its /proc/self/status is what the first
// frame tells, so it must not become one of the threads that give up rights.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 1 {
		os.Exit(runMode(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "veyra-init: is PID 1 of a sandbox; as a command: unpack DIR, read PATH [MAX], write PATH")
		os.Exit(2)
	}
	resetSignals()
	if err := serve(os.Stdin, os.Stdout); err != nil {
		lastWords(err)
	}
}

// lastWords says why everything in the sandbox ends now.
func lastWords(err error) {
	fmt.Fprintln(os.Stderr, "veyra-init:", err)
	os.Exit(1)
}
