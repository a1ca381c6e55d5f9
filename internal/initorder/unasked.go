package main

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// unasked is the runtime's function that looks for the CPU quota of the process's cgroup before anything of the program runs: it
// reads /proc/self/cgroup and mountinfo and opens a file that stays open, 0.2 ms and more where much is mounted. What it finds is the
// default of GOMAXPROCS, which a plugin's call sets to 1. No setting keeps it from looking: GODEBUG=containermaxprocs=0 has the
// runtime look and count the difference. It takes and returns nothing, so that it can return at once. Package cpus asks for what
// runs on. A runtime that has no such function is left as it is.
const unasked = "runtime.defaultGOMAXPROCSInit"

// returns is how a function of a machine returns, before it has made a frame: RET of the Intel 64 and IA-32 manual, volume 2, and
// of the Arm Architecture Reference Manual, C6.2.
func returns(machine elf.Machine) []byte {
	switch machine {
	case elf.EM_X86_64:
		return []byte{0xc3}
	case elf.EM_AARCH64:
		return []byte{0xc0, 0x03, 0x5f, 0xd6}
	}
	return nil
}

// leaveOut has the function return at once.
func (t *table) leaveOut(content []byte) error {
	if t.unasked.size == 0 {
		return nil
	}
	b, err := t.unasked.in(content)
	if err != nil {
		return fmt.Errorf("find its %s: %w", unasked, err)
	}
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return err
	}
	copy(b, returns(f.Machine))
	return nil
}
