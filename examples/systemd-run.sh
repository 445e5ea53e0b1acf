#!/bin/sh
# A program for podmux's exec runtime (docs/exec.md): the first container of a pod runs as a service of systemd.
# It needs jq. The service has the name of the pod's UID, so each operation can be repeated, and the hash
# in its description, so only what has changed is restarted.
set -eu
# A manifest can have any UID. systemctl would take some for a pattern, and the name of a unit has at most 255
# characters, so nothing is started for them.
reject_uid() {
    case $PODMUX_OP in DELETE | REMOVE) exit 0 ;; esac
    echo "metadata.uid may have only letters, digits, '.', '_' and '-' here, and 200 characters" >&2
    exit 1
}
case $PODMUX_POD_UID in *[!0-9A-Za-z._-]*) reject_uid ;; esac
[ "${#PODMUX_POD_UID}" -le 200 ] || reject_uid
unit=podmux-$PODMUX_POD_UID.service
description="pod $PODMUX_POD_NAMESPACE/$PODMUX_POD_NAME $PODMUX_HASH"
show() { systemctl show --property="$1" --value "$unit"; }
# To stop a service that does not exist is no failure. One that has failed stays loaded until it is reset.
stop() {
    systemctl stop "$unit" || [ "$(show LoadState)" = not-found ] || return 1
    systemctl reset-failed "$unit" 2> /dev/null || true
}

case $PODMUX_OP in
ADD | UPDATE | RECONCILE)
    # One word for each argument. References to variables are replaced as Kubernetes does it, and systemd replaces no
    # other ones. It does not set variables whose names have other characters than those of a shell's, so env does.
    # Those with valueFrom are not set.
    arguments=$(jq -r '.spec as $pod | $pod.containers[0] as $container |
        if $pod.hostUsers == false then
            "hostUsers: false needs a user namespace, and this program makes none\n" | halt_error(1)
        else . end |
        def expand($values): gsub("[$](?<name>[$]|[(][^)]*[)])";
            if .name == "$" then "$" else $values[.name[1:-1]] // "$\(.name)" end);
        reduce ($container.env[]? | select(.valueFrom | not)) as $variable
            ({}; .[$variable.name] = (. as $values | $variable.value // "" | expand($values))) | . as $values |
        def is_plain: .key | test("^[A-Za-z_][0-9A-Za-z_]*$");
        [$values | to_entries[] | select(is_plain | not) | "\(.key)=\(.value)"] as $others | [
        # A pod that is never started again stays loaded when it has failed.
        (if $pod.restartPolicy == "Never" then empty else "--collect" end),
        "--property=Restart=\({"Never": "no", "OnFailure": "on-failure"}[$pod.restartPolicy // ""] // "always")",
        "--property=RemainAfterExit=\(if $pod.restartPolicy == "Never" or $pod.restartPolicy == "OnFailure" then "yes" else "no" end)",
        "--property=TimeoutStopSec=\([$pod.terminationGracePeriodSeconds // 30, 1] | max)",
        ($values | to_entries[] | select(is_plain) | "--setenv=\(.key)=\(.value)"), "--",
        (if $others == [] then empty else "/usr/bin/env", "--", $others[] end,
            ($container.command[]?, $container.args[]? | expand($values)) | gsub("[$]"; "$$"))] | @sh') || exit 1
    case $(show ActiveState) in
    active | activating | failed) if [ "$(show Description)" = "$description" ]; then exit 0; fi ;;
    esac
    stop
    eval "set -- $arguments"
    # What did not start is not taken for a pod that runs, or that has failed, at the next attempt. systemd-run fails,
    # too, for a program that failed before systemd saw it start; a status from 200 to 249 is systemd's own.
    systemd-run --quiet --unit="$unit" --description="$description" --property=Type=exec \
        --property=RestartSec=1 --property=StartLimitIntervalSec=0 "$@" ||
        case "$(show Result) $(show ExecMainStatus)" in
        "exit-code 2"[0-4]?) stop && exit 1 ;;
        "exit-code "* | "signal "* | "core-dump "*) ;;
        *) stop && exit 1 ;;
        esac
    ;;
DELETE)
    # Within the grace of the deletion, which may be shorter than the pod's.
    timeout --foreground "$(jq '[.metadata.deletionGracePeriodSeconds, 1] | max')" systemctl stop "$unit" ||
        systemctl kill --signal=KILL "$unit" || true
    stop
    ;;
REMOVE) stop ;;
esac
