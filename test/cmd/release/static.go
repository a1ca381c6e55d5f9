package main

import (
	"debug/elf"
	"fmt"
	"io"
	"strings"
)

// checkStatic returns an error if a file is not a program that runs without other files. The image has
// none, so a pod of it would end again and again with "no such file or directory".
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read program %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			interpreter, _ := io.ReadAll(io.LimitReader(p.Open(), 4096)) // only for the message
			return fmt.Errorf("program %s is dynamically linked: it needs %s, and the image has only the program: build it with 'make build', or CGO_ENABLED=0", path, strings.TrimRight(string(interpreter), "\x00"))
		}
	}
	return nil
}
