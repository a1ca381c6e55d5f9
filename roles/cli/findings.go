package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/see/doctor"
)

// finding is one of doctor's, as people read it. nodes says on which nodes it is, and is "" for this one.
type finding struct {
	doctor.Finding
	nodes string
}

// writeProse prints each finding as a paragraph: what is wrong, what was read of which object, and what mends it.
func (p *Process) writeProse(all []finding, s style) error {
	width := p.width()
	for i, f := range all {
		if i > 0 {
			fmt.Fprintln(p.Stdout)
		}
		fmt.Fprintf(p.Stdout, "%s: %s (%s)\n", s.paint(severityColour(string(f.Severity)), string(f.Severity)), s.paint(bold, printable(f.What)), f.ID)
		text := printable(f.Object) + ": " + printable(f.Evidence)
		if f.nodes != "" {
			text = printable(f.nodes) + ": " + text
		}
		for _, line := range wrapped(text, width-2) {
			fmt.Fprintln(p.Stdout, "  "+line)
		}
		if err := p.writeNext("  ", f.Fix, f.See); err != nil {
			return err
		}
	}
	return nil
}

// writeNext prints the command that mends a fault, or that shows more of it, on one line, to be copied.
func (p *Process) writeNext(indent, fix, see string) error {
	line := ""
	switch {
	case fix != "":
		line = indent + "try: " + printable(fix) + "\n"
	case see != "":
		line = indent + "see: " + printable(see) + "\n"
	}
	_, err := io.WriteString(p.Stdout, line)
	return err
}

// severityColour returns the colour of a severity, or "".
func severityColour(severity string) string {
	return map[string]string{string(doctor.Error): red, string(doctor.Warning): yellow}[severity]
}

// The bounds of the width of text. A terminal without a size counts as one of the usual size.
const (
	narrow, usual, wide = 40, 80, 110
)

// width returns the width for text on the standard output.
func (p *Process) width() int {
	columns := 0
	if f, is := p.Stdout.(*os.File); is {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			columns = int(size.Col)
		}
	}
	return min(max(cmp.Or(columns, usual), narrow), wide)
}

// wrapped returns the lines of a text that are not wider than width, unless a word is.
func wrapped(text string, width int) (lines []string) {
	line, used := "", 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if used > 0 && used+1+n > width {
			lines, line, used = append(lines, line), "", 0
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	return append(lines, line)
}
