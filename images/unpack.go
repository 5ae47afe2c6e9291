package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// unpack runs the confined child and waits for it. Its target is an empty
// directory that the caller throws away when this fails.
func unpack(ctx context.Context, asked request) error {
	text, err := json.Marshal(asked)
	if err != nil {
		return fmt.Errorf("asking for the unpack: %w", err)
	}
	command := exec.CommandContext(ctx, "/proc/self/exe", UnpackCommand)
	command.Args[0] = os.Args[0]
	command.Env = []string{"LANG=C.UTF-8"}
	command.Dir = "/"
	command.Stdin = bytes.NewReader(text)
	var said tail
	command.Stderr = &said
	command.SysProcAttr = &syscall.SysProcAttr{
		// Nobody to talk to, nobody to signal, and all of it ends with its first
		// process.
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	// The kernel sends Pdeathsig when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	reply, ended := readAnswer(command)
	if ctx.Err() != nil {
		return fmt.Errorf("unpacking the image: %w", context.Cause(ctx))
	}
	return judge(reply, ended, &said)
}

// readAnswer starts the child and reads its one bounded line.
func readAnswer(command *exec.Cmd) ([]byte, error) {
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	reply, err := io.ReadAll(io.LimitReader(out, maxRequest))
	return reply, errors.Join(err, command.Wait())
}

// judge believes only a clean end together with a clean answer: the child has
// read foreign bytes.
func judge(reply []byte, ended error, said *tail) error {
	var got answer
	if err := json.Unmarshal(reply, &got); err != nil {
		return fmt.Errorf("unpacking the image: the confined process gave no answer (%w); it said: %s", errors.Join(ended, err), said)
	}
	switch {
	case got.Refused != nil:
		return got.Refused
	case got.Failed == ErrConfinement.Error():
		return ErrConfinement
	case got.Failed != "":
		return fmt.Errorf("unpacking the image: %.2000q", got.Failed)
	case ended != nil:
		return fmt.Errorf("unpacking the image: %w; it said: %s", ended, said)
	}
	return nil
}
