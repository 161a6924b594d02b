//! `attribution::role`.

use vmaudit::attribution::code::Role;
use vmaudit::attribution::role::on_behalf_of;
use vmaudit::attribution::role::role_of;

#[test]
fn roles() {
    let of = |module, name: &'static str| role_of(module, Some(name).filter(|name| !name.is_empty()));
    for (module, name, role) in [
        ("libc.so.6", "__GI___mmap64", Role::Wrapper),
        ("prog", "__mmap", Role::Wrapper),
        ("prog", "mmap_file", Role::Program),
        ("prog", "runtime/internal/syscall.Syscall6", Role::Wrapper),
        ("prog", "internal/runtime/syscall.Syscall6.abi0", Role::Wrapper),
        ("prog", "syscall.(*mmapper).Mmap", Role::Wrapper),
        ("prog", "example.org/a/vendor/golang.org/x/sys/unix.Mmap", Role::Wrapper),
        ("prog", "example.org/mysyscall.Mmap", Role::Program),
        ("prog", "main.mmap", Role::Program),
        ("libc.so.6", "__libc_free@@GLIBC_2.2.5", Role::Allocator),
        ("prog", "je_malloc_default", Role::Allocator),
        ("libstdc++.so.6", "operator new(unsigned long)", Role::Allocator),
        ("prog", "freer", Role::Program),
        ("libtcmalloc.so.4", "", Role::Allocator),
        ("libc.so.6", "fopen", Role::Libc),
        ("ld-musl-x86_64.so.1", "", Role::Libc),
        ("ld-linux-x86-64.so.2", "", Role::Loader),
        ("prog", "runtime.mallocgc", Role::Runtime),
        ("libjvm.so", "os::reserve_memory(unsigned long)", Role::Runtime),
        ("libc.so.6", "__libc_start_main_impl", Role::Start),
        ("prog", "_start", Role::Start),
        ("prog", "start", Role::Program),
        ("[unknown]", "", Role::Program),
    ] {
        assert_eq!(of(module, name), role, "{module} {name}");
    }
    assert_eq!(on_behalf_of("runtime.systemstack.abi0"), Some("goroutine"));
    assert_eq!(on_behalf_of("runtime.main"), None);
}
