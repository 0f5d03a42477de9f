import type { StorePolicy } from '#core/model.ts';

/** The policy of a store whose settings the administrator did not change. */
export const defaultPolicy: StorePolicy = {
  onDelete: 'delete',
  retention: 0,
  readOnly: false,
  maxVolumes: undefined,
  maxBytes: undefined,
  defaultSize: undefined,
  inline: undefined,
};
