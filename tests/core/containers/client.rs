//! `containers::client`.

use std::ffi::OsString;
use vmaudit::containers::Client;
use vmaudit::containers::recognise;

fn of(line: &str) -> Option<Client> {
    recognise(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
}

#[test]
fn the_container_of_an_exec() {
    for line in [
        "docker exec web ls",
        "/usr/bin/docker exec -it web sh -c x",
        "docker -H unix:///x.sock --debug exec -e A=1 --user=root -w / web ls -l",
        "docker container exec web ls",
        "docker exec -itu root web ls",
        "docker exec -ti -eA=1 -- web ls",
        "podman --root /r --runroot /s --runtime runc exec -i web /bin/x -l",
        "nerdctl -n k8s.io exec web ls",
    ] {
        let Some(Client::Exec { container, .. }) = of(line) else { panic!("{line}") };
        assert_eq!(container.as_deref(), Some("web"), "{line}");
    }
    let unnamed = Client::Exec { program: "podman", container: None };
    assert_eq!(of("podman exec -l ls"), Some(unnamed));
    assert_eq!(of("docker exec"), Some(Client::Exec { program: "docker", container: None }));
}

#[test]
fn clients_behind_other_programs() {
    for line in [
        "sudo docker exec web ls",
        "sudo -n -u root A=1 /usr/bin/docker exec -it web sh",
        "env -i DOCKER_HOST=unix:///x docker exec web ls",
        "nice -n 5 timeout -k 1 30 podman exec web ls",
    ] {
        let Some(Client::Exec { container, .. }) = of(line) else { panic!("{line}") };
        assert_eq!(container.as_deref(), Some("web"), "{line}");
    }
    for script in [
        "docker exec web ls",
        "cd /; A=1 exec docker exec \"web\" ls | cat",
        "true && sudo docker exec web x",
    ] {
        let words = ["/bin/sh", "-ec", script].map(OsString::from);
        let Some(Client::Exec { container, .. }) = recognise(&words) else { panic!("{script}") };
        assert_eq!(container.as_deref(), Some("web"), "{script}");
    }
    for line in ["sudo", "env A=1", "sh -c", "sh script.sh docker exec web", "timeout 5"] {
        assert_eq!(of(line), None, "{line}");
    }
}

#[test]
fn others() {
    let starts = Client::Starts { program: "docker", verb: "run".to_owned() };
    assert_eq!(of("docker run --rm img exec web"), Some(starts));
    for line in ["docker ps", "docker", "docker -H", "exec web", "sh -c docker", "dockerd exec web", ""] {
        assert_eq!(of(line), None, "{line}");
    }
}
