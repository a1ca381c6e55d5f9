package dispatch

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/store"
)

// TestEverySentinelHasACode reads the sentinel errors from the sources and requires a row
// in errorCodes for each: without a row, a new error would get code 100.
func TestEverySentinelHasACode(t *testing.T) {
	rows := tableRows(t)
	found := 0
	for _, dir := range []string{"../..", "../../../netops", "../../../store", "."} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, name := range sentinels(t, file) {
				found++
				if !rows[name] && !rows[name[strings.Index(name, ".")+1:]] {
					t.Errorf("%s has no row in errorCodes", name)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d sentinels found: the test looks in the wrong place", found)
	}
}

// sentinels lists the exported package-level error variables of a file as "package.ErrName".
func sentinels(t *testing.T, file string) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, spec := range g.Specs {
			for _, n := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(n.Name, "Err") {
					names = append(names, f.Name.Name+"."+n.Name)
				}
			}
		}
	}
	return names
}

// tableRows lists the errors in the source of errorCodes as "package.ErrName".
func tableRows(t *testing.T) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "errcode.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || lit.Type != nil || len(lit.Elts) != 2 {
			return true
		}
		switch e := lit.Elts[0].(type) {
		case *ast.SelectorExpr:
			rows[e.X.(*ast.Ident).Name+"."+e.Sel.Name] = true
		case *ast.Ident:
			rows[e.Name] = true
		}
		return true
	})
	return rows
}

func TestErrorCodesAreDistinct(t *testing.T) {
	byErr, byCode := map[error]bool{}, map[uint]error{}
	for _, row := range errorCodes() {
		if byErr[row.err] {
			t.Errorf("%v has two rows", row.err)
		}
		byErr[row.err] = true
		if row.code == 0 || row.code == 999 || (row.code > codeGeneral && byCode[row.code] != nil) {
			t.Errorf("%v: code %d is reserved, or %v has it", row.err, row.code, byCode[row.code])
		}
		byCode[row.code] = row.err
		if got := codeOf(fmt.Errorf("a: %w", fmt.Errorf("b: %w", row.err))); got != row.code {
			t.Errorf("%v: code %d, want %d", row.err, got, row.code)
		}
	}
}

func TestErrorObject(t *testing.T) {
	executed := &DelegateError{Type: "x", File: "/p/x", Verb: roles.Add, Code: 42, Msg: "their words", Details: "their details"}
	mute := &DelegateError{Type: "x", File: "/p/x", Verb: roles.Add, Err: errors.New("exit status 3")}
	tests := []struct {
		name string
		verb roles.Verb
		err  error
		want errorObject
	}{
		{"plain", roles.Add, errors.New("no"), errorObject{Code: 100, Msg: "bridge: no"}},
		{"wrapped", roles.Add, fmt.Errorf("link: %w", netops.ErrExists), errorObject{Code: 102, Msg: "bridge: link: exists already"}},
		{"the outermost word counts", roles.Add, fmt.Errorf("%w: %w", roles.ErrNetns, netops.ErrNotExist), errorObject{Code: 8, Msg: "bridge: invalid network namespace: does not exist"}},
		{"a typed error", roles.Add, fmt.Errorf("claim: %w", &store.TakenError{What: "port 80"}), errorObject{Code: 112, Msg: `bridge: claim: port 80: taken by "" of container "" on network ""`}},
		{
			"joined", roles.Del, errors.Join(fmt.Errorf("a: %w", store.ErrBusy), errors.Join(errors.New("b"), errors.New("c"))),
			errorObject{Code: 11, Msg: "bridge: a: busy", Details: "b\nc"},
		},
		{"joined inside", roles.Del, fmt.Errorf("a: %w", errors.Join(errors.New("b"), netops.ErrNotExist)), errorObject{Code: 101, Msg: "bridge: a: b; does not exist"}},
		{
			"faults of a configuration", roles.Add, errors.Join(&roles.ConfError{Path: "a", Reason: "is x"}, &roles.ConfError{Path: "b", Reason: "is y"}),
			errorObject{Code: 7, Msg: "bridge: a: is x; b: is y"},
		},
		{
			"an executed plugin", roles.Add, fmt.Errorf("ipam: %w", executed),
			errorObject{Code: 42, Msg: "their words", Details: "ipam: execute \"/p/x\" for ADD: their words\ntheir details"},
		},
		{"after our own error", roles.Add, errors.Join(netops.ErrExists, executed), errorObject{Code: 102, Msg: "bridge: exists already", Details: `execute "/p/x" for ADD: their words`}},
		{"a mute plugin", roles.Add, mute, errorObject{Code: 100, Msg: `bridge: execute "/p/x" for ADD: exit status 3`}},
		{"a file", roles.Add, fmt.Errorf("read: %w", &fs.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}), errorObject{Code: 5, Msg: "bridge: read: open /x: file does not exist"}},
		{"interrupted", roles.Add, fmt.Errorf("wait: %w", context.Canceled), errorObject{Code: 11, Msg: "bridge: wait: context canceled"}},
		{"exhausted", roles.Add, roles.ErrExhausted, errorObject{Code: 11, Msg: "bridge: no addresses left"}},
		{"exhausted on STATUS", roles.Status, roles.ErrExhausted, errorObject{Code: 50, Msg: "bridge: no addresses left"}},
		{"anything on STATUS", roles.Status, errors.New("no"), errorObject{Code: 50, Msg: "bridge: no"}},
		{"limited on STATUS", roles.Status, fmt.Errorf("x: %w", roles.ErrLimited), errorObject{Code: 51, Msg: "bridge: x: not available, existing containers may be affected"}},
		{"busy on STATUS", roles.Status, store.ErrBusy, errorObject{Code: 11, Msg: "bridge: busy"}},
		{"an executed plugin on STATUS", roles.Status, executed, errorObject{Code: 42, Msg: "their words", Details: "execute \"/p/x\" for ADD: their words\ntheir details"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.CNIVersion = "1.0.0"
			if diff := cmp.Diff(tt.want, newErrorObject("1.0.0", "bridge", tt.verb, tt.err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSentinelsAreFound(t *testing.T) {
	if got := sentinels(t, "errors.go"); !cmp.Equal(got, []string{"dispatch.ErrIO"}) {
		t.Errorf("sentinels of errors.go: %q", got)
	}
}
