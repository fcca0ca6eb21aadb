// Echo on ACE_Dev_Poll_Reactor: epoll with one-shot events, one thread at a time in epoll_wait(2).
//
//     c++ -std=c++17 -O2 -DNDEBUG -pthread -o ace-dev-poll ace_dev_poll.cpp -lACE      (Debian: libace-dev)
//     ./ace-dev-poll [--threads 4] [--work-us 0] [--block-us 0] [--unix PATH]
//
// Prints its address when it listens and ends with its standard input. The table of handlers is as large as
// the limit of open descriptors allows.
#include <ace/ACE.h>
#include <ace/Dev_Poll_Reactor.h>

#include "ace_echo.hpp"

int main(int count, char **words) {
    return echo::main(count, words, [](const auto &arguments, const auto &listener) {
        // The order of those that wait for their turn is the library's own, first in, first out: last in,
        // first out is faster with empty handlers and slower with those of 20 us and more.
        const bool restart_if_interrupted = true;
        echo::serve(new ACE_Dev_Poll_Reactor(ACE::max_handles(), restart_if_interrupted), arguments,
                    listener);
    });
}
