package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct for rt_sigaction(2), all zero: the default
// action. It is larger on some architectures than on others; the zeros suffice
// for all.
type sigaction [8]uint64

// kernelSigset is the size of the kernel's signal sets, in bytes.
const kernelSigset = 8

// resetSignals gives every ignored signal its default action. What PID 1
// ignores, every command would ignore, too; it inherits that from whoever
// started the daemon (some shells and makes ignore one of libc's own signals).
func resetSignals() {
	ignored := ignoredSignals()
	for number := 1; number <= 64; number++ {
		if ignored&(1<<(number-1)) == 0 {
			continue
		}
		var usual sigaction
		// An error leaves the signal as it was, which is no danger.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(number), uintptr(unsafe.Pointer(&usual)), 0, kernelSigset, 0, 0)
	}
}

func ignoredSignals() uint64 {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if hex, found := strings.CutPrefix(lines.Text(), "SigIgn:"); found {
			mask, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return mask
		}
	}
	return 0
}
