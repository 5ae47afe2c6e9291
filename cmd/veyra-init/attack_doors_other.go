//go:build !amd64

package main

import "golang.org/x/sys/unix"

// int80 does not exist on this CPU.
//
//go:nosplit
//go:norace
func int80(_, _, _, _ uintptr) unix.Errno { return unix.ENOSYS }

// nativeCalls: none that exist on this CPU only.
func nativeCalls() []call { return nil }

// otherDoors: none but the 32-bit program.
func otherDoors() []call { return nil }

// elf32 is a whole 32-bit program of ARM: header, one loaded segment, exit(200).
var elf32 = []byte{
	0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	2, 0, 40, 0, 1, 0, 0, 0, 0x54, 0x80, 0x04, 0x08, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 5, 0x34, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 0,
	1, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x80, 0x04, 0x08, 0x00, 0x80, 0x04, 0x08, 0x60, 0, 0, 0, 0x60, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0,
	ran32, 0, 0xa0, 0xe3, 1, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef, // mov r0, 200; mov r7, 1; svc 0
}
