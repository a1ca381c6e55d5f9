package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/cnibox/cnibox/roles/see/inventory"
)

// style defines the form of the output.
type style struct {
	table, color bool
	// prose means that a reader looks at a terminal and did not ask for a table.
	prose bool
}

// tableFlags returns the flags of verbs that print a table.
func tableFlags() []cli.Flag {
	return []cli.Flag{&cli.BoolFlag{Name: "table", Usage: "print an aligned table, terminal or not"}}
}

// style returns the style for the terminal and the flags.
func (p *Process) style(c *cli.Context) style {
	return style{
		table: p.IsTerminal || c.Bool("table"),
		prose: p.IsTerminal && !c.Bool("table"),
		color: p.IsTerminal && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb",
	}
}

// The used colours as ANSI codes.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint colours a text if colours are enabled.
func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// shortIDLeast is the length of the shortest beginning of a random container ID that verbs accept.
const shortIDLeast = 6

// isHex reports whether an ID has hexadecimal digits only.
func isHex(id string) bool { return strings.Trim(id, "0123456789abcdef") == "" }

// name returns the pod's name, or the container's ID if there is no pod.
func (s style) name(pod, id string) string {
	switch {
	case pod != "":
		return pod
	case s.table:
		return inventory.ShortID(id)
	}
	return id
}

// table is a header and rows of as many cells.
type table struct {
	head []string
	rows [][]string
	// paint returns the colour of a cell. It may be nil.
	paint func(column int, cell string) string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints aligned columns in the table style, or else one line per row with tabs between
// cells. Some texts come from other programs, so control characters are removed.
func (t *table) write(w io.Writer, s style) error {
	if !s.table {
		return t.writeTabs(w)
	}
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(printable(cell)))
		}
	}
	for n, row := range append([][]string{t.head}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			cell = printable(cell)
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
			code := ""
			if n == 0 {
				code = bold
			} else if t.paint != nil {
				code = t.paint(i, cell)
			}
			if code != "" {
				cell = s.paint(code, cell)
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(pad)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) writeTabs(w io.Writer) error {
	for _, row := range append([][]string{t.head}, t.rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		if _, err := fmt.Fprintln(w, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return nil
}

// printable removes control characters.
func printable(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// writeJSON prints a value for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// jsonArray prints an array as writeJSON does, but each element as soon as it is known.
type jsonArray[T any] struct {
	w     io.Writer
	begun bool
}

func (a *jsonArray[T]) writeElements(elements []T) error {
	for _, v := range elements {
		var b bytes.Buffer
		b.WriteString(",\n  ")
		if !a.begun {
			b.Reset()
			b.WriteString("[\n  ")
		}
		a.begun = true
		e := json.NewEncoder(&b)
		e.SetIndent("  ", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return err
		}
		if _, err := a.w.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n"))); err != nil {
			return err
		}
	}
	return nil
}

// end prints the end of the array.
func (a *jsonArray[T]) end() error {
	end := "\n]\n"
	if !a.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(a.w, end)
	return err
}

// output prints a value as JSON with --json, and as text otherwise.
func (p *Process) output(c *cli.Context, v any, text func(style) error) error {
	if c.Bool(jsonFlag) {
		return writeJSON(p.Stdout, v)
	}
	return text(p.style(c))
}

// counted returns a number with its noun, which gets the ending of the plural unless n is 1.
func counted(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
