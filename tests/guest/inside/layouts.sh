# Sourced by a guest's script: gives the machine a cgroup layout, and runs tests in it.
top=/sys/fs/cgroup
all="+cpu +memory +pids"

# As root's own sessions are: not every controller is turned on there.
session() {
    LAYOUT=v2
    mountpoint -q $top || mount -t cgroup2 cgroup2 $top
    mkdir -p $top/user.slice/session.scope
    echo "+memory +pids" >$top/cgroup.subtree_control
    echo "+memory +pids" >$top/user.slice/cgroup.subtree_control
    enter() { echo 0 >$top/user.slice/session.scope/cgroup.procs; }
}

# A part of the hierarchy is the user's, who runs in a leaf of it and is not alone there.
delegated_leaf() {
    delegate part
    echo "$all" >$top/part/cgroup.subtree_control
    mkdir $top/part/leaf
    give $top/part/leaf
    enter() {
        echo 0 >$top/part/leaf/cgroup.procs
        sleep 10000 &
    }
}

# The user runs alone in the very cgroup that was delegated, as systemd does it for a scope.
delegated_scope() {
    delegate scope
    enter() { echo 0 >$top/scope/cgroup.procs; }
}

# A user's own systemd has a part of the hierarchy, makes a cgroup for each program, and gives it to that.
user_systemd() {
    delegate manager
    echo "$all" >$top/manager/cgroup.subtree_control
    mkdir $top/manager/init.scope $top/manager/app.slice
    give $top/manager/init.scope
    give $top/manager/app.slice
    echo "$all" >$top/manager/app.slice/cgroup.subtree_control
    enter() {
        echo 0 >$top/manager/init.scope/cgroup.procs
        export SCOPES=$top/manager/app.slice
    }
}

# A unit of systemd's with Delegate= and DelegateSubgroup=, as deploy/atoll.service is: every start is in the same cgroup.
service() {
    delegate unit
    mkdir $top/unit/atoll-owner
    give $top/unit/atoll-owner
    enter() { echo 0 >$top/unit/atoll-owner/cgroup.procs; }
}

delegate() {
    LAYOUT=v2
    mountpoint -q $top || mount -t cgroup2 -o nsdelegate cgroup2 $top
    echo "$all" >$top/cgroup.subtree_control
    mkdir $top/$1
    give $top/$1
}

give() {
    chown guest:guest $1 $1/cgroup.procs $1/cgroup.subtree_control $1/cgroup.threads
}

# A hierarchy for each of the named controllers.
older() {
    LAYOUT=v1
    mount -t tmpfs cgroup $top
    for controller in "$@"; do
        mkdir $top/$controller
        mount -t cgroup -o $controller cgroup $top/$controller
    done
    enter() { :; }
}

# As systemd's: the older hierarchies hold limits, and one of version 2 without any controller is beside them.
hybrid() {
    older cpu,cpuacct memory pids freezer
    LAYOUT=hybrid
    mkdir $top/unified
    mount -t cgroup2 cgroup2 $top/unified
}

none() {
    LAYOUT=none
    enter() { :; }
}

# run_tests NAME USER ARGUMENTS...: pytest in the checkout; what comes of it is part of the result.
run_tests() {
    result=/run/result/$1
    user=$2
    shift 2
    mkdir -m 1777 $result
    home=/home/$user
    mkdir -p $home/tmp
    chown $user:$user $home $home/tmp
    (
        enter
        cd /run/job/atoll
        # As if it were installed.
        mkdir -p src/atoll-0.dist-info
        printf 'Metadata-Version: 2.1\nName: atoll\nVersion: 0\n' >src/atoll-0.dist-info/METADATA
        export HOME=$home LAYOUT PYTHONPATH=/opt/site-packages:src PYTHONDONTWRITEBYTECODE=1
        exec setpriv --reuid $user --regid $user --clear-groups \
            python3 -m pytest -p no:cacheprovider --junitxml=$result/junit.xml "$@"
    ) >$result/output 2>&1
    echo $? >$result/exit
}
