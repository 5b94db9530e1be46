#include "um/pages_block.h"

namespace um::pages {

void Block::duplicate(Processor to, const PageMask& copied) {
  for (int by : {0, 1}) {
    write[by] -= copied;
    read[by] -= copied - resident[by];
  }
  resident[index_of(to)] |= copied;
}

void Block::relocate(Processor to, const PageMask& moved) {
  const int here = index_of(to), there = index_of(other(to));
  const PageMask arriving = moved - resident[here];
  const PageMask collapsing = moved & resident[there];
  for (PageMask* mapping : {read, write}) {
    mapping[here] -= arriving;
    mapping[there] -= arriving | collapsing;
  }
  resident[here] |= moved;
  resident[there] -= moved;
}

}  // namespace um::pages
