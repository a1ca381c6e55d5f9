package attach

import (
	"errors"

	"github.com/cnibox/cnibox/roles"
)

// InterfaceRole completes the table's entry of an interface role. build gets a
// configuration with its defaults; it is valid, unless Undo reads one for a DEL.
func InterfaceRole[T any, C roles.Conf[T]](r roles.Role, build func(C) SpecBuilder) roles.Role {
	r.Kind = roles.Interface
	return complete(r, func(c C) roles.Handler {
		return &Handler{role: build(c), name: r.Name(), ipam: c.Common().IPAM.Type}
	})
}

// ChainedRole is InterfaceRole for a chained role.
func ChainedRole[T any, C roles.Conf[T]](r roles.Role, build func(C) Chained) roles.Role {
	r.Kind = roles.Chained
	return complete(r, func(c C) roles.Handler { return &ChainedHandler{role: build(c), name: r.Name()} })
}

// complete sets what follows from the type of a role's configuration. A
// configuration with a method ForUndo is changed by it before an Undo.
func complete[T any, C roles.Conf[T]](r roles.Role, handler func(C) roles.Handler) roles.Role {
	r.Conf = func() any { return C(new(T)) }
	r.New = func(raw []byte) (roles.Handler, error) {
		c, err := roles.ReadConf[T, C](raw)
		if err != nil {
			return nil, err
		}
		return handler(c), nil
	}
	r.Undo = func(raw []byte) (roles.Handler, error) {
		c, err := roles.DecodeConf[T, C](raw)
		if err != nil && !errors.Is(err, roles.ErrConf) {
			return nil, err
		}
		if u, ok := any(c).(interface{ ForUndo() }); ok {
			u.ForUndo()
		}
		return handler(c), nil
	}
	return r
}
