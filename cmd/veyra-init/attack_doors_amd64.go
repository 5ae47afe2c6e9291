package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// enter80 enters the kernel as a 32-bit program does. Implemented in assembly.
func enter80(nr, a, b, c uintptr) uintptr

// int80 returns 0 or the errno of such a call.
//
//go:nosplit
//go:norace
func int80(nr, a, b, c uintptr) unix.Errno {
	if r := int32(enter80(nr, a, b, c)); r < 0 {
		return unix.Errno(-r)
	}
	return 0
}

// x32 is set in the number of a call of the x32 ABI.
const x32 = 0x4000_0000

// nativeCalls exist on this CPU only.
func nativeCalls() []call {
	return []call{
		sys("iopl", unix.SYS_IOPL, 3),
		sys("ioperm", unix.SYS_IOPERM, 0, 1, 1),
		sys("uselib", unix.SYS_USELIB, text("/nonexistent")),
	}
}

// otherDoors are calls by 32-bit numbers and by those of x32. socketcall takes
// its arguments from memory, past any filter (case A18).
func otherDoors() []call {
	low := lowMemory()
	file := place32(low, 0, []byte("/proc/self/status\x00"))
	return []call{
		old("int80_getpid", 20),
		old("int80_open", 5, file),
		old("int80_mount", 21, file, file, file),
		old("int80_socketcall_alg", 102, 1, arguments32(low, 64, unix.AF_ALG, unix.SOCK_SEQPACKET)),
		old("int80_socketcall_vsock", 102, 1, arguments32(low, 128, unix.AF_VSOCK, unix.SOCK_STREAM)),
		old("int80_socketcall_packet", 102, 1, arguments32(low, 192, unix.AF_PACKET, unix.SOCK_RAW)),
		sys("x32_getpid", x32|unix.SYS_GETPID),
		sys("x32_socket_alg", x32|unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		sys("x32_mount", x32|unix.SYS_MOUNT, file, file, file, 0, 0),
	}
}

func old(name string, nr uintptr, args ...uintptr) call {
	c := sys(name, nr, args...)
	c.old = true
	return c
}

// lowMemory can be named by 32 bits.
func lowMemory() []byte {
	low, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_32BIT)
	if err != nil {
		return scratch[:]
	}
	return low
}

// place32 puts bytes into low memory and returns where they are.
func place32(low []byte, at int, what []byte) uintptr {
	copy(low[at:], what)
	return address(&low[at])
}

func arguments32(low []byte, at int, family, kind uint32) uintptr {
	args := binary.LittleEndian.AppendUint32(nil, family)
	args = binary.LittleEndian.AppendUint32(args, kind)
	return place32(low, at, append(args, 0, 0, 0, 0))
}

// elf32 is a whole 32-bit program: header, one loaded segment, exit(200).
var elf32 = []byte{
	0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 0x04, 0x08, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x34, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	1, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x80, 0x04, 0x08, 0x00, 0x80, 0x04, 0x08, 0x60, 0, 0, 0, 0x60, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0,
	0xb8, 1, 0, 0, 0, 0xbb, ran32, 0, 0, 0, 0xcd, 0x80,
}
