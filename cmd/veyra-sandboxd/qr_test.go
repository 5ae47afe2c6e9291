package main_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"rsc.io/qr"
)

// terminal opens a pseudo-terminal: what a program writes to its far end is
// read at the near one.
func terminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("not applicable: no pseudo-terminals here")
	}
	t.Cleanup(func() { _ = near.Close() })
	n, err := unix.IoctlGetInt(int(near.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(near.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("not applicable: no pseudo-terminals here")
	}
	return near, far
}

// On a terminal the link comes as a QR code as well, on stderr; stdout is the
// link alone either way.
func TestLinksAreDrawnOnATerminal(t *testing.T) {
	t.Parallel()
	env := []string{
		"VEYRA_CONTROL_PLANE=http://127.0.0.1:1", "RUNTIME_PUBLIC_HOST=127.0.0.1", "VEYRA_RUNTIME_STATE_DIR=" + t.TempDir() + "/state",
	}
	near, far := terminal(t)
	cmd := exec.CommandContext(t.Context(), house.daemon, "link")
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = environ(env...), &out, far
	drawn := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(near) // EIO once the far end is closed
		drawn <- string(text)
	}()
	err := cmd.Run()
	_ = far.Close()
	shown := <-drawn
	if err != nil {
		t.Fatalf("link: %v\n%s", err, shown)
	}
	link := strings.TrimSuffix(out.String(), "\n")
	if !strings.HasPrefix(link, "veyra-connect://") || strings.ContainsAny(link, "\n█▀▄") {
		t.Errorf("stdout %q", out.String())
	}
	code, err := qr.Encode(link, qr.L)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := misdrawn(code, shown); wrong != "" {
		t.Errorf("%s in\n%s", wrong, shown)
	}
	if again := command(t, env, "link").want(t, 0); strings.ContainsAny(again.err, "█▀▄") || again.out != out.String() {
		t.Errorf("without a terminal: %+v", again)
	}
}

// misdrawn compares what was drawn, light on dark, two modules a character and
// two of margin, with the code; "" if it is the same.
func misdrawn(code *qr.Code, shown string) string {
	const margin = 2
	light := map[rune][2]bool{'█': {true, true}, '▀': {true, false}, '▄': {false, true}, ' ': {false, false}}
	y := -margin
	for line := range strings.Lines(shown) {
		line = strings.TrimRight(line, "\r\n")
		if !strings.HasPrefix(line, "██") {
			continue // words
		}
		x := -margin
		for _, drawn := range line {
			for i, isLight := range light[drawn] {
				if y+i < code.Size+margin && isLight == code.Black(x, y+i) {
					return fmt.Sprintf("module %d, %d is wrong", x, y+i)
				}
			}
			x++
		}
		if x != code.Size+margin {
			return fmt.Sprintf("row %d has %d modules", y, x+margin)
		}
		y += 2
	}
	if y < code.Size+margin {
		return fmt.Sprintf("only %d rows", y+margin)
	}
	return ""
}
