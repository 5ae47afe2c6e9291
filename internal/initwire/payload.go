package initwire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Flags of a Command.
const (
	// Merged sends both streams through one pipe, so that their order is kept.
	Merged uint32 = 1 << iota
	// Alone kills every other process of the sandbox first.
	Alone
	// NoStdin gives the command /dev/null: some tools search their standard
	// input instead of the directory when it is a pipe.
	NoStdin
)

// Command is what init is asked to run. Strings are bytes: neither arguments
// nor environments need to be UTF-8.
type Command struct {
	Flags uint32
	Dir   string
	Argv  []string
	Env   []string
}

// Encode returns the bytes to send in Part and Start frames.
func (c Command) Encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, c.Flags)
	b = appendString(b, c.Dir)
	b = appendStrings(b, c.Argv)
	return appendStrings(b, c.Env)
}

// DecodeCommand is the inverse of Encode.
func DecodeCommand(b []byte) (Command, error) {
	d := decoder{rest: b}
	c := Command{Flags: d.uint32(), Dir: d.string(), Argv: d.strings(), Env: d.strings()}
	return c, d.end("command")
}

// Flags of an Exit.
const (
	// LowDisk: less than 1 MiB was free on the sandbox's disk in one sample.
	LowDisk uint32 = 1 << iota
	// LowInodes: fewer than 64 files could be made in one sample.
	LowInodes
	// Cancelled: a Cancel arrived while the command was running.
	Cancelled
	// NotStarted: Status holds 126 or 127 as an exit status, nothing ran.
	NotStarted
	// FullTasks: in one sample there were as many tasks, beside init's own, as
	// RLIMIT_NPROC allows. It tells of the whole kernel, so it means something
	// only where that is the sandbox's.
	FullTasks
)

// Exit is what became of a command.
type Exit struct {
	// Status is the wait status as wait4(2) gave it.
	Status uint32
	Flags  uint32
}

// Encode returns the payload of an Exited frame.
func (e Exit) Encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, e.Status)
	return binary.BigEndian.AppendUint32(b, e.Flags)
}

// DecodeExit is the inverse of Encode.
func DecodeExit(b []byte) (Exit, error) {
	d := decoder{rest: b}
	e := Exit{Status: d.uint32(), Flags: d.uint32()}
	return e, d.end("exit")
}

// Hello is what init read about itself before anything else ran: texts of the
// kernel, to be parsed and compared by the other side.
type Hello struct {
	// Status is /proc/self/status of init.
	Status string
	// Forker is the same of the thread from which all commands are forked;
	// they keep its bounding set and its no_new_privs.
	Forker string
	// UIDMap and GIDMap are /proc/self/uid_map and gid_map.
	UIDMap, GIDMap string
	// MountInfo is /proc/self/mountinfo.
	MountInfo string
	// Dumpable is the answer of PR_GET_DUMPABLE.
	Dumpable uint32
	// Files, Core and Procs are init's hard limits of open files, bytes of a
	// core file and processes of one id: what no command can raise.
	Files, Core, Procs uint64
}

// Encode returns the payload of the first frame.
func (h Hello) Encode() []byte {
	var b []byte
	for _, s := range []string{h.Status, h.Forker, h.UIDMap, h.GIDMap, h.MountInfo} {
		b = appendString(b, s)
	}
	b = binary.BigEndian.AppendUint32(b, h.Dumpable)
	for _, n := range []uint64{h.Files, h.Core, h.Procs} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// DecodeHello is the inverse of Encode.
func DecodeHello(b []byte) (Hello, error) {
	d := decoder{rest: b}
	h := Hello{
		d.string(), d.string(), d.string(), d.string(), d.string(), d.uint32(),
		d.uint64(), d.uint64(), d.uint64(),
	}
	return h, d.end("hello")
}

// Uint32 is the payload of a Credit.
func Uint32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// DecodeUint32 is the inverse of Uint32.
func DecodeUint32(b []byte) (uint32, error) {
	d := decoder{rest: b}
	n := d.uint32()
	return n, d.end("number")
}

// Silence is the payload of a Ping that sets how long init waits for the next
// frame. Init takes only what is shorter than its own 30 s.
func Silence(d time.Duration) []byte {
	return Uint32(uint32(min(max(d.Milliseconds(), 1), math.MaxUint32)))
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

// decoder takes values off the front; after the first shortage it stays bad
// and gives zero values, so that callers check once at the end.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) uint32() uint32 {
	if d.bad || len(d.rest) < 4 {
		d.bad = true
		return 0
	}
	n := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return n
}

func (d *decoder) uint64() uint64 {
	high := d.uint32()
	return uint64(high)<<32 | uint64(d.uint32())
}

func (d *decoder) string() string {
	n := d.uint32()
	if d.bad || uint64(n) > uint64(len(d.rest)) {
		d.bad = true
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) strings() []string {
	n := d.uint32()
	// Each string takes at least its length, so a count that the rest can't
	// hold is refused before anything is allocated for it.
	if d.bad || uint64(n) > uint64(len(d.rest)/4) {
		d.bad = true
		return nil
	}
	list := make([]string, 0, n)
	for range n {
		list = append(list, d.string())
	}
	return list
}

func (d *decoder) end(what string) error {
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("decoding %s: %w", what, ErrFrame)
	}
	return nil
}
