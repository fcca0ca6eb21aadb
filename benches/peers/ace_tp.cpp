// Echo on ACE_TP_Reactor: leader/followers around select(2).
//
//     c++ -std=c++17 -O2 -DNDEBUG -pthread -o ace-tp ace_tp.cpp -lACE      (Debian: libace-dev)
//     ./ace-tp [--threads 4] [--work-us 0] [--block-us 0] [--unix PATH]
//
// Prints its address when it listens and ends with its standard input. It is limited to descriptors below
// FD_SETSIZE (1,024), a few of which are its own; further connections are closed at once.
#include <ace/TP_Reactor.h>

#include "ace_echo.hpp"

int main(int count, char **words) {
    return echo::main(count, words, [](const auto &arguments, const auto &listener) {
        // No signal is handled, so there is none to be masked at every turn. The order of the followers is
        // the library's own, first in, first out.
        const bool mask_signals = false;
        echo::serve(new ACE_TP_Reactor(nullptr, nullptr, mask_signals), arguments, listener);
    });
}
