package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

// ran32 is the status of the 32-bit program: no errno that anybody gives.
const ran32 = 200

// doors enters the kernel by its other doors, each in a process of its own with
// a single thread: a filter may answer by ending the thread.
func (a *attacker) doors() {
	for _, c := range otherDoors() {
		a.inChild(c.name, 0, c)
	}
	a.foreignProgram()
}

// foreignProgram becomes a program of 32 bits.
func (a *attacker) foreignProgram() {
	const path = "/workspace/.elf32"
	if err := writeProgram(path, elf32, 0o755); err != nil {
		a.tried("elf32", err)
		return
	}
	pid, err := fork(0, []call{sys("execve", unix.SYS_EXECVE, text(path), address(&[2]uintptr{text(path), 0}), address(new(uintptr)))}, false)
	var status unix.WaitStatus
	if err == nil {
		_, err = unix.Wait4(pid, &status, 0, nil)
	}
	switch {
	case err != nil:
		a.tried("elf32", err)
	case status.Signaled():
		a.report("elf32", unix.SignalName(status.Signal()), "")
	case status.ExitStatus() == ran32:
		a.report("elf32", attack.Done, "")
	default:
		a.answered("elf32", unix.Errno(status.ExitStatus()))
	}
}

// again starts program, a copy of this one, with another attack, and waits for
// its end.
func again(program, name string) (unix.WaitStatus, error) {
	pid, err := syscall.ForkExec(program, []string{program, attack.Mode, name}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, err
	}
	var status unix.WaitStatus
	_, err = unix.Wait4(pid, &status, 0, nil)
	return status, err
}

// writeProgram writes a file that can be executed.
func writeProgram(path string, code []byte, mode uint32) error {
	if err := os.WriteFile(path, code, 0o600); err != nil {
		return err
	}
	return unix.Chmod(path, mode)
}
