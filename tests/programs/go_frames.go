// Maps memory through functions of each kind, and prints what Go itself says about the stack at that moment:
// the size, then function, file and line of each frame, all of them with tabs between.
package main

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
)

const page = 4096

//go:noinline
func mapped(pages int) {
	var places [64]uintptr
	// without runtime.Callers and this function, of which the line is another one
	frames := runtime.CallersFrames(places[:runtime.Callers(2, places[:])])
	fmt.Print(pages * page)
	for {
		frame, more := frames.Next()
		fmt.Printf("\t%s\t%s\t%d", frame.Function, frame.File, frame.Line)
		if !more {
			break
		}
	}
	fmt.Println()
	if _, err := syscall.Mmap(-1, 0, pages*page, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE); err != nil {
		panic(err)
	}
}

func inner(pages int) {
	mapped(pages)
}

func middle(pages int) {
	inner(pages + 1)
}

//go:noinline
func outer(pages int) {
	middle(pages)
	inner(pages)
}

type mapper struct{ pages int }

//go:noinline
func (m *mapper) grow(more int) {
	middle(m.pages + more)
}

type grower interface{ grow(more int) }

//go:noinline
func each[T any](values []T, pages int) {
	for number := range values {
		inner(pages + number)
	}
}

func main() {
	outer(1001)
	var through grower = &mapper{1100}
	through.grow(3)
	each([]string{"a", "b"}, 1200)
	each([]int{1}, 1300)
	func() {
		defer func() { middle(1400) }()
		inner(1450)
	}()
	var all sync.WaitGroup
	all.Add(1)
	go func() {
		defer all.Done()
		inner(1500)
	}()
	all.Wait()
}
