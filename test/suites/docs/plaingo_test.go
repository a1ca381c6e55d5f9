package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlainGo: code outside tests has no compiler directive that changes inlining or reaches into another package, the
// statement before the condition of an if or switch changes nothing but plain variables, and no error of a role begins with its name. `make lint` runs this test, because
// no linter has these rules.
func TestPlainGo(t *testing.T) {
	err := filepath.WalkDir(repository, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || file == filepath.Join(repository, "bin")):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		found := notPlain(f)
		for _, kind := range []string{"iface", "ipam", "chained", "meta"} {
			if role, _ := filepath.Match(filepath.Join(repository, "roles", kind, "*", "*"), file); role {
				maps.Copy(found, selfNamed(f))
			}
		}
		for at, text := range found {
			t.Errorf("%s: %s", set.Position(at), text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNotPlain: each rule of TestPlainGo finds the forbidden code, and no other.
func TestNotPlain(t *testing.T) {
	for code, wrong := range map[string]bool{
		"//go:noinline\nfunc f() {}":                           true,
		"//go:linkname f runtime.f\nfunc f()":                  true,
		"// The comment go:noinline names no directive.":       false,
		"func f() { if g(); x {} }":                            true,
		"func f() { if x++; x > 1 {} }":                        true,
		"func f() { if x -= 2; x > 1 {} }":                     true,
		"func f() { if c <- 1; x {} }":                         true,
		"func f() { if s.x, err = g(); err != nil {} }":        true,
		"func f() { if a[1] = g(); x {} }":                     true,
		"func f() { if *p = g(); x {} }":                       true,
		"func f() { if x {} else if s.x = 1; y {} }":           true,
		"func f() { switch s.x = 1; x {} }":                    true,
		"func f() { switch s.x = 1; y := x.(type) {} }":        true,
		"func f() { if x, err := g(); err != nil {} }":         false,
		"func f() { if x, err = g(); err != nil {} }":          false,
		"func f() { switch x := g(); { case x: s.y = 1 } }":    false,
		"func f() { if x { s.y = 1 }; for s.x = 0; y; {} }":    false,
		"func f() { if x := func() { s.y++ }; x != nil {} }":   false,
		"func f() error { return fmt.Errorf(\"x: %w\", err) }": true,
		"func f() error { return errors.New(\"y: x: z\") }":    false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+code, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		found := notPlain(f)
		maps.Copy(found, selfNamed(f))
		if len(found) > 0 != wrong {
			t.Errorf("%s: found %v", code, found)
		}
	}
}

// notPlain returns the code in a file that TestPlainGo forbids.
func notPlain(f *ast.File) map[token.Pos]string {
	found := map[token.Pos]string{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:noinline") || strings.HasPrefix(c.Text, "//go:linkname") {
				found[c.Pos()] = "remove this directive"
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		var init ast.Stmt
		switch n := n.(type) {
		case *ast.IfStmt:
			init = n.Init
		case *ast.SwitchStmt:
			init = n.Init
		case *ast.TypeSwitchStmt:
			init = n.Init
		}
		if init != nil && !isPlainInit(init) {
			found[init.Pos()] = "write this statement on a line of its own before the if or switch"
		}
		return true
	})
	return found
}

// selfNamed returns the errors of a role that begin with its name.
func selfNamed(f *ast.File) map[token.Pos]string {
	found := map[token.Pos]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if n != nil && strings.HasPrefix(strings.ReplaceAll(errorText(n), "-", ""), f.Name.Name+": ") {
			found[n.Pos()] = "leave out the name of the role: the message of a plugin begins with it"
		}
		return true
	})
	return found
}

// errorText returns the text of a call of errors.New or fmt.Errorf, or nothing.
func errorText(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	literal, isLiteral := call.Args[0].(*ast.BasicLit)
	if !isSelector || !isLiteral || f.Sel.Name != "New" && f.Sel.Name != "Errorf" {
		return ""
	}
	return strings.Trim(literal.Value, "\"`")
}

// isPlainInit reports whether a statement only defines variables or assigns to plain ones.
func isPlainInit(init ast.Stmt) bool {
	s, ok := init.(*ast.AssignStmt)
	if !ok || s.Tok != token.ASSIGN && s.Tok != token.DEFINE {
		return false
	}
	for _, left := range s.Lhs {
		if _, ok := left.(*ast.Ident); !ok {
			return false
		}
	}
	return true
}
