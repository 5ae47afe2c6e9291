// Package subids gives a user namespace the ids that an administrator has given to
// this process's account in /etc/subuid and /etc/subgid. It knows nothing of what
// runs in the namespace. Start reading at Find.
package subids

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// Block is a row of ids of the host.
type Block struct{ First, Count uint64 }

// Blocks are the largest of an account.
type Blocks struct{ UIDs, GIDs Block }

// Find reads both files (subuid(5)).
func Find() (Blocks, error) {
	uids, uidErr := largest("/etc/subuid")
	gids, gidErr := largest("/etc/subgid")
	return Blocks{uids, gids}, errors.Join(uidErr, gidErr)
}

// Count is how many ids there are of both kinds.
func (b Blocks) Count() uint64 { return min(b.UIDs.Count, b.GIDs.Count) }

// largest is the largest block that the file gives to our account, by name or by
// number.
func largest(path string) (Block, error) {
	names := map[string]bool{strconv.Itoa(os.Getuid()): true}
	if me, err := user.Current(); err == nil {
		names[me.Username] = true
	}
	f, err := os.Open(path)
	if err != nil {
		return Block{}, fmt.Errorf("reading subordinate ids: %w", err)
	}
	defer f.Close()
	var most Block
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		parts := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(parts) != 3 || !names[parts[0]] {
			continue
		}
		first, err := strconv.ParseUint(parts[1], 10, 32)
		count, err2 := strconv.ParseUint(parts[2], 10, 32)
		if err == nil && err2 == nil && count > most.Count {
			most = Block{first, count}
		}
	}
	return most, lines.Err()
}

// Map makes our own user and group root in the user namespace of a child of ours,
// and puts count ids of each block behind, from 1 upwards. The programs of the
// package uidmap do it, since it takes root's powers; they judge whether the ids
// are ours.
func (b Blocks) Map(ctx context.Context, pid int, count uint64) error {
	return errors.Join(
		mapWith(ctx, "newuidmap", pid, os.Getuid(), b.UIDs.First, count),
		mapWith(ctx, "newgidmap", pid, os.Getgid(), b.GIDs.First, count),
	)
}

// ErrNoTool is in the chain when the package uidmap is not installed.
var ErrNoTool = errors.New("not found; install the package uidmap")

func mapWith(ctx context.Context, tool string, pid, own int, first, count uint64) error {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin"} {
		path := dir + "/" + tool
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		var said strings.Builder
		number := func(n uint64) string { return strconv.FormatUint(n, 10) }
		cmd := exec.CommandContext(ctx, path, strconv.Itoa(pid), "0", strconv.Itoa(own), "1", "1", number(first), number(count))
		cmd.Env, cmd.Stderr, cmd.WaitDelay = []string{}, &said, time.Second
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("mapping ids: %w: %.300q", err, said.String())
		}
		return nil
	}
	return fmt.Errorf("looking for %s: %w", tool, ErrNoTool)
}
