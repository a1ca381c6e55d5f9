// Command prog tells in which order its packages are initialized.
package main

import (
	_ "github.com/cnibox/cnibox/internal/initorder/testdata/prog/a"
	_ "github.com/cnibox/cnibox/internal/initorder/testdata/prog/b"
)

func main() { println("main") }
