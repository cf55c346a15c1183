// The record of a walk over part of a guard program, in a form in which "nothing changed" is quick to see.
//
// `record` walks the nodes of a unit (one root, or all constant roots) and notes for each value what would change with
// it: words in memory (a type pointer, a dict's version, a list's items, a cell's contents), the facts of tensors, and,
// from CPython 3.12 on, watched dicts. `check` then compares those one after the other. What cannot be noted so (getters,
// sizes bound to symbols) stays to be read at each check. Where something changed, only the value that holds it is
// looked at again; where another object is in its place, the unit has to be walked and recorded anew.
//
// No reference is held to what is recorded, except to constants; the head of guard_snapshot.cpp proves that none is
// needed. Each word lies in an object that words of earlier generations (or dicts that have not changed) keep alive.
// Those of one generation are compared together, a block at a time without a branch; comparing stops behind the first
// block in which one differs.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "guard_program.h"
#include "guard_walk.h"
#include "tensor_facts.h"

// The answers of `Snapshot::check`, besides -1 (an exception is set).
constexpr int kFails = 0, kHolds = 1, kWalk = 2;

class Snapshot {
 public:
  Snapshot(Program& program, int begin, int end) : program_(program), begin_(begin), end_(end) {}
  ~Snapshot() { forget(); }
  Snapshot(const Snapshot&) = delete;

  // Whether the frame's roots are the objects that this snapshot is about.
  bool is_about(const Frame& frame) const;

  // As `walk_nodes` does, and where all checks pass, record.
  int record(const Frame& frame, PyObject** values, Kept& kept, int64_t* symbols);

  // For a recorded snapshot that is about the frame. kHolds, kFails, -1, or kWalk: it has to be recorded again.
  // `kept` gets those values that were read anew.
  int check(const Frame& frame, Kept& kept, int64_t* symbols);

  bool recorded() const { return recorded_; }
  // The value of a node as it was recorded: borrowed, and valid right after `check` only.
  PyObject* value(int node) const { return seen_[node - begin_].value; }
  // Another number each time when one of the values that final checks want is another object; 0: always another.
  uint64_t serial() const { return recorded_ && keeps_are_recorded_ ? serial_ : 0; }

  struct Counts {
    size_t words, tensors, dicts, residuals;
  };
  Counts counts() const { return {n_words_, tensors_.size(), watched_.size(), residuals_.size()}; }

  // Events of watched dicts.
  void dict_changed(int node);
  void dict_freed() { freed_ = true; }

  std::vector<PyObject*> roots;  // borrowed, compared only
  unsigned int sightings = 0;    // walks since it was last recorded
  unsigned int patience = 1;     // how many it takes to record
  unsigned int served = 0;       // checks that held since it was recorded

  // Be about the frame's roots from now on.
  void look_at(const Frame& frame);
  // Drop what was recorded.
  void forget();

 private:
  struct Seen {
    PyObject* value = nullptr;  // borrowed
    PyTypeObject* type = nullptr;
    Ref constant;               // the value, where nothing else would keep a constant's address its own
    bool held = false;          // the program keeps the value alive, or knows by a weak reference that it lives
    bool typed = false;         // of the recorded type, unless the dict that it was read from has changed
    bool fresh = false;         // read at each check
    bool leaf = false;          // nothing was recorded inside the value: another object may take its place
    bool changed = false;       // a watched dict that has changed since
    bool dict_noted = false;
  };
  struct Word {
    const uint64_t* address;
    uint64_t expected;
    int owner;       // the node to look at again; ~node: the unit has to be walked
    int generation;  // words of smaller ones say whether the address can be read
  };
  // A node to be read (or only checked) at each check.
  struct Residual {
    int node, parent;
    int source;  // where in `residuals_` the parent's value is, or -1: as recorded
    bool read;
  };

  Seen& seen(int node) { return seen_[node - begin_]; }
  void note(const void* address, int owner, int generation, bool rigid);
  void arrange_words();
  void note_dict(int node, PyObject* dict);
  bool note_step(int node, int parent);
  bool note_value(int node);
  bool note_check(int node, const Check& check);
  int look_again(int node, int64_t* symbols);
  int check_words(int64_t* symbols);
  int check_tensors(int64_t* symbols);
  int check_residuals(const Frame& frame, Kept& kept, int64_t* symbols);

  Program& program_;
  const int begin_, end_;
  bool recorded_ = false, freed_ = false, keeps_are_recorded_ = true;
  uint64_t serial_ = 0;
  std::vector<Seen> seen_;
  std::vector<Word> noted_;  // while recording
  // The words in blocks of one generation each, the last of a generation filled up with repetitions.
  std::vector<const uint64_t*> addresses_;
  std::vector<uint64_t> expected_;
  std::vector<int> owners_;
  size_t n_words_ = 0;  // without repetitions
  std::vector<TensorStamp> tensors_;
  std::vector<int> tensor_nodes_;
  std::vector<int64_t> tensor_numbers_;
  std::vector<Residual> residuals_;
  std::vector<int> changed_;                         // nodes of watched dicts that changed
  std::vector<std::pair<PyObject*, int>> watched_;  // (dict, node), both borrowed
};
