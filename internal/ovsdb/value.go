package ovsdb

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// Operation is an operation of a transaction (RFC 7047, section 5.2). The values in it are strings, integers, and
// those of UUID, NamedUUID, Set and Map.
type Operation struct {
	// Op is "select", "insert", "mutate" or "wait".
	Op    string `json:"op"`
	Table string `json:"table"`
	// Where has no conditions for all rows, and is nil for operations that have none.
	Where []Condition `json:"where,omitzero"`
	// UUIDName is how later operations refer to an inserted row.
	UUIDName string           `json:"uuid-name,omitempty"`
	Row      map[string]any   `json:"row,omitempty"`
	Columns  []string         `json:"columns,omitempty"`
	Rows     []map[string]any `json:"rows,omitempty"`
	// Until is "==" or "!=": whether "wait" ends when the columns of the selected rows are Rows, or when they differ.
	Until string `json:"until,omitempty"`
	// Timeout is how long "wait" waits, in milliseconds. 0 has no end.
	Timeout   int        `json:"timeout,omitempty"`
	Mutations []Mutation `json:"mutations,omitempty"`
}

// Condition has a column, a function such as "==", "!=" or "includes", and a value.
type Condition [3]any

// Mutation has a column, "insert" or "delete", and a set or map.
type Mutation [3]any

// Result is the result of an operation.
type Result struct {
	// Count is the number of rows that "mutate" changed.
	Count int   `json:"count"`
	Rows  []Row `json:"rows"`
	// Error is the kind of the error, or "".
	Error   string `json:"error"`
	Details string `json:"details"`
}

// Row has the values of the selected columns.
type Row map[string]json.RawMessage

// UUID returns the value for the row with an ID, as Row.ID returns it.
func UUID(id string) any { return []any{"uuid", id} }

// NamedUUID returns the value for the row that an operation with this UUIDName inserts.
func NamedUUID(name string) any { return []any{"named-uuid", name} }

// Set returns the value of a set. An optional value is a set of at most one.
func Set(values ...any) any { return []any{"set", append([]any{}, values...)} }

// Map returns the value of a map, in the order of its keys.
func Map(m map[string]string) any {
	pairs := []any{}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, []any{k, m[k]})
	}
	return []any{"map", pairs}
}

// Text returns the value of a column of strings, or "" if it has none.
func (r Row) Text(column string) (s string) {
	if coldjson.Unmarshal(r[column], &s) != nil {
		return ""
	}
	return s
}

// ID returns the ID of the row. It is "" if the column "_uuid" was not selected.
func (r Row) ID() string {
	var pair []string
	if coldjson.Unmarshal(r["_uuid"], &pair) != nil || len(pair) != 2 || pair[0] != "uuid" {
		return ""
	}
	return pair[1]
}

// Ints returns the values of a column of integers.
func (r Row) Ints(column string) []int {
	var one int
	if coldjson.Unmarshal(r[column], &one) == nil {
		return []int{one}
	}
	var all []int
	if inner(r[column], "set", &all) != nil {
		return nil
	}
	return all
}

// Map returns the value of a column of maps of strings.
func (r Row) Map(column string) map[string]string {
	var pairs [][]string
	if inner(r[column], "map", &pairs) != nil {
		return nil
	}
	m := map[string]string{}
	for _, p := range pairs {
		if len(p) == 2 {
			m[p[0]] = p[1]
		}
	}
	return m
}

// inner decodes the list in a set or a map.
func inner(raw json.RawMessage, kind string, into any) error {
	var parts []json.RawMessage
	if err := coldjson.Unmarshal(raw, &parts); err != nil {
		return err
	}
	var is string
	if len(parts) != 2 || coldjson.Unmarshal(parts[0], &is) != nil || is != kind {
		return ErrProtocol
	}
	return coldjson.Unmarshal(parts[1], into)
}
