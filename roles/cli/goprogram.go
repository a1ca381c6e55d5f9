package cli

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
)

const (
	// buildMagic is the start of the build information of a Go program (package debug/buildinfo,
	// since Go 1.18). That package supports five formats of executables and would add 0.7 MB to the
	// binary for one line of text.
	buildMagic = "\xff Go buildinf:"
	// buildAlign is the alignment of the information in the file.
	buildAlign = 16
	// buildHeader is the length of the part before the two texts.
	buildHeader = 32
	// inlineTexts is the flag for texts that follow the header.
	inlineTexts = 2
	// maxBuildInfo limits one record. A list of modules has some kilobytes.
	maxBuildInfo = 1 << 20
	// sentinel is the length of the marks around the text of modules.
	sentinel = 16
)

// goProgram reads the main package and module version from an executable's build information. Both
// are empty if it has none.
func goProgram(r io.ReaderAt) (main, version string) {
	const step = 1 << 20
	buf := make([]byte, step+maxBuildInfo)
	for off := int64(0); ; off += step {
		n, err := r.ReadAt(buf, off)
		window := buf[:n]
		for at := 0; at < min(step, n); {
			i := bytes.Index(window[at:], []byte(buildMagic))
			if i < 0 {
				break
			}
			at += i
			if at%buildAlign == 0 {
				if main, version = buildInfo(window[at:]); main != "" {
					return main, version
				}
			}
			at += len(buildMagic)
		}
		if err != nil {
			return "", ""
		}
	}
}

// buildInfo decodes one record. main is empty if the record is invalid.
func buildInfo(b []byte) (main, version string) {
	if len(b) < buildHeader || b[len(buildMagic)+1]&inlineTexts == 0 {
		return "", ""
	}
	goVersion, rest := buildText(b[buildHeader:])
	modules, _ := buildText(rest)
	if !strings.HasPrefix(goVersion, "go") && !strings.HasPrefix(goVersion, "devel") || len(modules) < 2*sentinel {
		return "", ""
	}
	for line := range strings.SplitSeq(modules[sentinel:len(modules)-sentinel], "\n") {
		f := strings.Split(line, "\t")
		switch {
		case f[0] == "path" && len(f) > 1:
			main = f[1]
		case f[0] == "mod" && len(f) > 2:
			version = f[2]
		}
	}
	return main, version
}

// buildText decodes a length and a text of that length.
func buildText(b []byte) (text string, rest []byte) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return "", nil
	}
	return string(b[used : used+int(n)]), b[used+int(n):]
}
