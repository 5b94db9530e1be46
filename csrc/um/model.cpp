#include "um/model.h"

#include "um/rules.h"

namespace um {

using rules::Block;
using rules::Location;
using rules::Rights;

namespace {

bool device_may(const Block& block, bool write) {
  return block.device_rights == Rights::write || (!write && block.device_rights == Rights::read);
}

// The host maps its own copy; not for writing while the device has one too, nor while a write would revoke a discard.
bool host_may(const Block& block, bool write) {
  return block.on_host && (!write || (!block.on_device && !block.discarded));
}

}  // namespace

Model::Model(uint32_t blocks, uint32_t device_chunks) : rules_(new rules::Rules(blocks, device_chunks)) {}
Model::~Model() { delete rules_; }

void Model::allocate(uint32_t first, uint32_t count) {
  for (uint32_t block = first; block < first + count; ++block) rules_->at(block).allocated = true;
}
void Model::release(uint32_t block) { rules_->release(block); }

Outcome Model::access(uint32_t block, Processor processor, bool write) {
  const Block& now = rules_->at(block);
  if (processor == Processor::device) return device_may(now, write) ? Outcome{} : rules_->device_fault(block, write);
  return host_may(now, write) ? Outcome{} : rules_->host_fault(block, write);
}

Outcome Model::prefetch(uint32_t block, Processor to) { return rules_->prefetch(block, to); }
void Model::discard(uint32_t block) { rules_->discard(block); }

Outcome Model::advise(uint32_t block, Advice advice, Processor processor) {
  Outcome outcome;
  const bool device = processor == Processor::device;
  const Location location = device ? Location::device : Location::host;
  switch (advice) {
    case Advice::set_read_mostly:
      rules_->set_read_mostly(block);
      break;
    case Advice::unset_read_mostly:
      rules_->unset_read_mostly(block, outcome);
      break;
    case Advice::set_preferred_location:
      rules_->set_preferred_location(block, location, outcome);
      break;
    case Advice::unset_preferred_location:
      rules_->set_preferred_location(block, Location::none, outcome);
      break;
    case Advice::set_accessed_by:
      if (device) rules_->set_accessed_by_device(block, outcome);
      break;
    case Advice::unset_accessed_by:  // a mapping stays until the page moves (uvm/uvm_va_range.c)
      if (device) rules_->at(block).accessed_by_device = false;
      break;
  }
  return outcome;
}

void Model::pin(uint32_t block) { rules_->pin(block); }
void Model::unpin(uint32_t block) { rules_->unpin(block); }
bool Model::take_chunk(Outcome& outcome) { return rules_->take_plain(outcome); }
void Model::give_chunk() { rules_->give_plain(); }

Mapping Model::mapping(uint32_t block) const {
  const Block& now = rules_->at(block);
  if (now.device_rights == Rights::none) return Mapping::none;
  const bool write = now.device_rights == Rights::write;
  if (now.on_device) return write ? Mapping::device_write : Mapping::device_read;
  return write ? Mapping::remote_write : Mapping::remote_read;
}

bool Model::resident(uint32_t block, Processor processor) const {
  const Block& now = rules_->at(block);
  return processor == Processor::device ? now.on_device : now.on_host;
}
bool Model::allocated(uint32_t block) const { return rules_->at(block).allocated; }
uint32_t Model::pins(uint32_t block) const { return rules_->at(block).pins; }
uint32_t Model::free_chunks() const { return rules_->free_chunks(); }
uint32_t Model::resident_blocks() const { return rules_->resident(); }
uint32_t Model::pinned_blocks() const { return rules_->pinned_resident(); }
uint32_t Model::next_victim() const { return rules_->victim(); }
const Counters& Model::counters() const { return rules_->counters(); }

}  // namespace um
