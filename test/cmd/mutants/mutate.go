package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// mutant is one changed place. The bytes of the file in [from, to) become text.
type mutant struct {
	pkg      pkg
	file     string
	from, to int
	text     string
	// at is FILE:LINE, change is what a person reads. by is the test that found it, or "".
	at, change, by string
}

// flipped are the operators that take the place of those of comparisons.
var flipped = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
}

// quiet are the names of functions whose calls change a text for people or free what the end of the process frees: without them nothing
// fails that a test should find.
var quiet = map[string]bool{
	"Close": true, "Debug": true, "Info": true, "Warn": true, "Error": true, "Log": true, "Printf": true, "Println": true, "Fprintf": true,
	"Fprintln": true, "Fprint": true, "Errorf": true, "Logf": true, "KeepAlive": true, "Grow": true,
}

// mutate returns the mutants of a file: flipped comparisons, dropped statements, and changed numbers of comparisons. Statements and
// comparisons of texts for people are left out.
func mutate(name string, text []byte) ([]mutant, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []mutant
	add := func(n ast.Node, with, change string) {
		from, to := set.Position(n.Pos()).Offset, set.Position(n.End()).Offset
		at := fmt.Sprintf("%s:%d", name, set.Position(n.Pos()).Line)
		all = append(all, mutant{from: from, to: to, text: with, at: at, change: change})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			return !quiet[callee(n)]
		case *ast.BlockStmt:
			dropped(n.List, text, set, add)
		case *ast.CaseClause:
			dropped(n.Body, text, set, add)
		case *ast.BinaryExpr:
			compared(n, set, text, add)
		}
		return true
	})
	return all, nil
}

// callee is the name of the called function or method.
func callee(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// compared adds the mutants of a comparison.
func compared(n *ast.BinaryExpr, set *token.FileSet, text []byte, add func(ast.Node, string, string)) {
	to, ok := flipped[n.Op]
	if !ok {
		return
	}
	source := func(n ast.Node) string {
		return string(text[set.Position(n.Pos()).Offset:set.Position(n.End()).Offset])
	}
	x, y := source(n.X), source(n.Y)
	add(n, x+" "+to.String()+" "+y, oneLine(source(n))+" became "+to.String())
	if lit, ok := n.Y.(*ast.BasicLit); ok && lit.Kind == token.INT {
		if v, err := strconv.ParseInt(lit.Value, 0, 64); err == nil {
			more := strconv.FormatInt(v+1, 10)
			add(n, x+" "+n.Op.String()+" "+more, oneLine(source(n))+" became "+more)
		}
	}
}

// dropped adds the mutants that lack one statement of a list.
func dropped(list []ast.Stmt, text []byte, set *token.FileSet, add func(ast.Node, string, string)) {
	for _, s := range list {
		switch n := s.(type) {
		case *ast.ExprStmt:
			if c, ok := n.X.(*ast.CallExpr); !ok || quiet[callee(c)] {
				continue
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE || blank(n) {
				continue
			}
		case *ast.IncDecStmt:
		default:
			continue
		}
		add(s, "", "dropped "+oneLine(string(text[set.Position(s.Pos()).Offset:set.Position(s.End()).Offset])))
	}
}

// blank reports whether an assignment only discards.
func blank(n *ast.AssignStmt) bool {
	for _, left := range n.Lhs {
		if id, ok := left.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// oneLine shortens code for a line of output.
func oneLine(code string) string {
	if formatted, err := format.Source([]byte(code)); err == nil {
		code = string(bytes.TrimSpace(formatted))
	}
	code = strings.Join(strings.Fields(code), " ")
	const most = 80
	if len(code) > most {
		code = code[:most] + "…"
	}
	return "`" + code + "`"
}
